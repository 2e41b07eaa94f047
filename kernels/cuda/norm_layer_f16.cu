#include "tapestry/kernels/cuda/norm_layer.cuh"

namespace tapestry::kernels::cuda {
namespace {

const bool filled = for_types<Half>([]<class T>() {
  for (auto* const forward : {&layer_norm, &rms_norm})
    forward->set(DeviceType::cuda, dtype_of<T>, &launch_layer_norm<T>);
  for (auto* const backward : {&layer_norm_backward, &rms_norm_backward})
    backward->set(DeviceType::cuda, dtype_of<T>,
                  [](const LaunchContext& context, const LayerNormBackwardArgs& a) {
                    launch_layer_norm_backward<T>(context, a);
                  });
});

}  // namespace
}  // namespace tapestry::kernels::cuda
