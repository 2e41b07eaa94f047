#include "tapestry/kernels/cuda/conv_tensor_launch.cuh"
#include "tapestry/kernels/cuda/vendor/conv.h"

namespace tapestry::kernels::cuda {
namespace {

using T = Half;

void forward(const LaunchContext& context, const Conv2dArgs& a) {
  launch_conv2d_16<T>(context, a, kConvInF32);
}
void backward_input(const LaunchContext& context, const Conv2dBackwardInputArgs& a) {
  launch_conv2d_backward_input_16<T>(context, a, kConvInF32);
}
void backward_weight(const LaunchContext& context, const Conv2dBackwardWeightArgs& a) {
  launch_conv2d_backward_weight_16<T>(context, a, kConvInF32);
}

const bool filled = [] {
  constexpr DeviceType kDevice = DeviceType::cuda;
  conv2d.set(kDevice, dtype_of<T>, &conv_by_policy<T, Conv2dArgs, &forward>);
  conv2d_backward_input.set(kDevice, dtype_of<T>,
                            &conv_by_policy<T, Conv2dBackwardInputArgs, &backward_input>);
  conv2d_backward_weight.set(kDevice, dtype_of<T>,
                             &conv_by_policy<T, Conv2dBackwardWeightArgs, &backward_weight>);
  return true;
}();

}  // namespace
}  // namespace tapestry::kernels::cuda
