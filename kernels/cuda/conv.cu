#include "tapestry/kernels/cuda/conv.cuh"

namespace tapestry::kernels::cuda {
namespace {

const bool filled = [] {
  conv2d.set(DeviceType::cuda, DType::f32,
             [](const LaunchContext& context, const Conv2dArgs& a) { launch_conv2d(context, a); });
  conv2d_backward_input.set(DeviceType::cuda, DType::f32,
                            [](const LaunchContext& context, const Conv2dBackwardInputArgs& a) {
                              launch_conv2d_backward_input(context, a);
                            });
  conv2d_backward_weight.set(DeviceType::cuda, DType::f32,
                             [](const LaunchContext& context, const Conv2dBackwardWeightArgs& a) {
                               launch_conv2d_backward_weight(context, a);
                             });
  return true;
}();

}  // namespace
}  // namespace tapestry::kernels::cuda
