#pragma once
// The slots of attention on GPUs: own kernels or cuDNN's, as the policy of "attention" says.
#include "tapestry/kernels/cuda/attention_bias.h"

namespace tapestry::kernels::cuda {

template <class Args>
using OwnAttention = void (*)(const LaunchContext&, const Args&);

/// Computes by `own` or by cuDNN. `own` is null for dtypes that have no own kernel. cuDNN computes masks with
/// the help of the kernels `bias`.
void choose_attention(const LaunchContext& context, DType dtype, const AttentionArgs& args,
                      OwnAttention<AttentionArgs> own, const AttentionBiasKernels& bias);
void choose_attention(const LaunchContext& context, DType dtype, const AttentionBackwardArgs& args,
                      OwnAttention<AttentionBackwardArgs> own, const AttentionBiasKernels& bias);

/// The kernel to register for T, whose own kernel is `own`.
template <class T, class Args, OwnAttention<Args> own>
void attention_by_policy(const LaunchContext& context, const Args& args) {
  choose_attention(context, dtype_of<T>, args, own, attention_bias_kernels(dtype_of<T>));
}

}  // namespace tapestry::kernels::cuda
