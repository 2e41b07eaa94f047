#pragma once
// The slots of convolutions on GPUs: own kernels or cuDNN's, as the policy of "conv2d" says.
#include "tapestry/kernels/ops/conv.h"

namespace tapestry::kernels::cuda {

template <class Args>
using OwnConv = void (*)(const LaunchContext&, const Args&);

/// Computes by `own` or by cuDNN. Under deterministic algorithms cuDNN uses only its deterministic engines,
/// and without allow_tf32_convolution() only those that do not round f32 to TF32.
void choose_conv(const LaunchContext& context, DType dtype, const Conv2dArgs& args, OwnConv<Conv2dArgs> own);
void choose_conv(const LaunchContext& context, DType dtype, const Conv2dBackwardInputArgs& args,
                 OwnConv<Conv2dBackwardInputArgs> own);
/// cuDNN computes dweight alone; `own` computes dbias, which it must be able to do without dweight and x.
void choose_conv(const LaunchContext& context, DType dtype, const Conv2dBackwardWeightArgs& args,
                 OwnConv<Conv2dBackwardWeightArgs> own);

/// The kernel to register for T, whose own kernel is `own`.
template <class T, class Args, OwnConv<Args> own>
void conv_by_policy(const LaunchContext& context, const Args& args) {
  choose_conv(context, dtype_of<T>, args, own);
}

}  // namespace tapestry::kernels::cuda
