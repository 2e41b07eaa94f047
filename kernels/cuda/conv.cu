#include "tapestry/kernels/cuda/conv.cuh"
#include "tapestry/kernels/cuda/conv_f32.h"
#include "tapestry/kernels/cuda/vendor/conv.h"

namespace tapestry::kernels::cuda {
namespace {

void forward(const LaunchContext& context, const Conv2dArgs& a) { launch_conv2d(context, a); }
void backward_input(const LaunchContext& context, const Conv2dBackwardInputArgs& a) {
  launch_conv2d_backward_input(context, a);
}
void backward_weight(const LaunchContext& context, const Conv2dBackwardWeightArgs& a) {
  launch_conv2d_backward_weight(context, a);
}

const bool filled = [] {
  constexpr DeviceType kDevice = DeviceType::cuda;
  conv2d.set(kDevice, DType::f32, &conv_by_policy<float, Conv2dArgs, &forward>);
  conv2d_backward_input.set(kDevice, DType::f32,
                            &conv_by_policy<float, Conv2dBackwardInputArgs, &backward_input>);
  conv2d_backward_weight.set(kDevice, DType::f32,
                             &conv_by_policy<float, Conv2dBackwardWeightArgs, &backward_weight>);
  return true;
}();

}  // namespace

const ConvInF32 kConvInF32{&forward, &backward_input, &backward_weight};

}  // namespace tapestry::kernels::cuda
