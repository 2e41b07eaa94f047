// 3-d convolutions in f32 by oneDNN. A build without it refuses all shapes.
#include "tapestry/kernels/ops/conv3d.h"

#include "tapestry/kernels/cpu/conv.h"

namespace tapestry::kernels::cpu {
namespace {

[[maybe_unused]] const bool filled = [] {
  conv3d.set(DeviceType::cpu, DType::f32, [](const LaunchContext& context, const Conv3dArgs& a) {
    *a.done = OneDnnConv3d::forward(context, a.shape, a.x.as<float>(), a.weight.as<float>(),
                                    a.bias.as<float>(), a.y.as<float>());
  });
  conv3d_backward_input.set(DeviceType::cpu, DType::f32,
                            [](const LaunchContext& context, const Conv3dBackwardInputArgs& a) {
                              *a.done = OneDnnConv3d::backward_input(context, a.shape, a.dy.as<float>(),
                                                                     a.weight.as<float>(), a.dx.as<float>());
                            });
  conv3d_backward_weight.set(
      DeviceType::cpu, DType::f32, [](const LaunchContext& context, const Conv3dBackwardWeightArgs& a) {
        *a.done = OneDnnConv3d::backward_weight(context, a.shape, a.dy.as<float>(), a.x.as<float>(),
                                                a.dweight.as<float>(), a.dbias.as<float>());
      });
  return true;
}();

}  // namespace
}  // namespace tapestry::kernels::cpu
