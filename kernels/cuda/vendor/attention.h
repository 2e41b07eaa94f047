#pragma once
// The slots of attention on GPUs: own kernels or cuDNN's, as the policy of "attention" says.
#include "tapestry/kernels/ops/attention.h"

namespace tapestry::kernels::cuda {

template <class Args>
using OwnAttention = void (*)(const LaunchContext&, const Args&);

/// Computes by `own` or by cuDNN. `own` is null for dtypes that have no own kernel.
void choose_attention(const LaunchContext& context, DType dtype, const AttentionArgs& args,
                      OwnAttention<AttentionArgs> own);
void choose_attention(const LaunchContext& context, DType dtype, const AttentionBackwardArgs& args,
                      OwnAttention<AttentionBackwardArgs> own);

/// The kernel to register for T, whose own kernel is `own`.
template <class T, class Args, OwnAttention<Args> own>
void attention_by_policy(const LaunchContext& context, const Args& args) {
  choose_attention(context, dtype_of<T>, args, own);
}

}  // namespace tapestry::kernels::cuda
