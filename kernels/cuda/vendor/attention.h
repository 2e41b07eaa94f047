#pragma once
// The slots of attention on GPUs: own kernels or cuDNN's, as the policy of "attention" says.
#include <string_view>

#include "tapestry/kernels/cuda/attention_bias.h"

namespace tapestry::kernels::cuda {

template <class Args>
using OwnAttention = void (*)(const LaunchContext&, const Args&);

/// An own kernel that computes some cases only, and is preferred for those to the one that computes all.
template <class Args>
struct SpecialAttention {
  const char* name;                                       ///< of the candidate
  std::string_view (*why_not)(DType dtype, const Args&);  ///< empty if it can compute them
  OwnAttention<Args> run;
};

/// Computes by `own`, by `special` or by cuDNN. `own` is null for dtypes that have no own kernel, and
/// `special` is null if there is none. cuDNN computes masks with the help of the kernels `bias`.
void choose_attention(const LaunchContext& context, DType dtype, const AttentionArgs& args,
                      OwnAttention<AttentionArgs> own, const AttentionBiasKernels& bias,
                      const SpecialAttention<AttentionArgs>* special = nullptr);
void choose_attention(const LaunchContext& context, DType dtype, const AttentionBackwardArgs& args,
                      OwnAttention<AttentionBackwardArgs> own, const AttentionBiasKernels& bias,
                      const SpecialAttention<AttentionBackwardArgs>* special = nullptr);

/// The kernel to register for T, whose own kernel is `own`.
template <class T, class Args, OwnAttention<Args> own, const SpecialAttention<Args>* special = nullptr>
void attention_by_policy(const LaunchContext& context, const Args& args) {
  choose_attention(context, dtype_of<T>, args, own, attention_bias_kernels(dtype_of<T>), special);
}

}  // namespace tapestry::kernels::cuda
