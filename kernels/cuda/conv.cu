#include "tapestry/kernels/cuda/conv.cuh"
#include "tapestry/kernels/cuda/conv_f32.h"
#include "tapestry/kernels/cuda/vendor/conv.h"

namespace tapestry::kernels::cuda {
namespace {

void conv2d_forward_f32(const LaunchContext& context, const Conv2dArgs& a) { launch_conv2d(context, a); }
void conv2d_backward_input_f32(const LaunchContext& context, const Conv2dBackwardInputArgs& a) {
  launch_conv2d_backward_input(context, a);
}
void conv2d_backward_weight_f32(const LaunchContext& context, const Conv2dBackwardWeightArgs& a) {
  launch_conv2d_backward_weight(context, a);
}

const bool conv_filled = [] {
  conv2d.set(kDevice, DType::f32, &conv_by_policy<float, Conv2dArgs, &conv2d_forward_f32>);
  conv2d_backward_input.set(kDevice, DType::f32,
                            &conv_by_policy<float, Conv2dBackwardInputArgs, &conv2d_backward_input_f32>);
  conv2d_backward_weight.set(kDevice, DType::f32,
                             &conv_by_policy<float, Conv2dBackwardWeightArgs, &conv2d_backward_weight_f32>);
  return true;
}();

}  // namespace

const ConvInF32 kConvInF32{&conv2d_forward_f32, &conv2d_backward_input_f32, &conv2d_backward_weight_f32};

}  // namespace tapestry::kernels::cuda
