#include "tapestry/kernels/cuda/norm_layer.cuh"

namespace tapestry::kernels::cuda {
namespace {

const bool norm_layer_filled = for_types<float, Half, BFloat16>([]<class T>() {
  layer_norm.set(DeviceType::cuda, dtype_of<T>, &launch_layer_norm<T>);
  rms_norm.set(DeviceType::cuda, dtype_of<T>, &launch_layer_norm<T>);
  for (auto* const backward : {&layer_norm_backward, &rms_norm_backward})
    backward->set(DeviceType::cuda, dtype_of<T>,
                  [](const LaunchContext& context, const LayerNormBackwardArgs& a) {
                    launch_layer_norm_backward<T>(context, a);
                  });
});

}  // namespace
}  // namespace tapestry::kernels::cuda
