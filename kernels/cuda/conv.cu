#include "tapestry/kernels/cuda/conv.cuh"
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
  // Only cuDNN computes these.
  for_types<BFloat16, Half>([]<class T>() {
    conv2d.set(kDevice, dtype_of<T>, &conv_by_policy<T, Conv2dArgs, nullptr>);
    conv2d_backward_input.set(kDevice, dtype_of<T>, &conv_by_policy<T, Conv2dBackwardInputArgs, nullptr>);
    conv2d_backward_weight.set(kDevice, dtype_of<T>, &conv_by_policy<T, Conv2dBackwardWeightArgs, nullptr>);
  });
  return true;
}();

}  // namespace
}  // namespace tapestry::kernels::cuda
