#include "tapestry/kernels/cuda/grid_sample.cuh"

namespace tapestry::kernels::cuda {
namespace {

const bool grid_sample_filled = for_types<float, BFloat16>([]<class T>() {
  constexpr DeviceType device = DeviceType::cuda;
  grid_sample.set(device, dtype_of<T>, &launch_grid_sample<T>);
  grid_sample_backward_input.set(device, dtype_of<T>, &launch_grid_sample_backward_input<T>);
  grid_sample_backward_grid.set(device, dtype_of<T>, &launch_grid_sample_backward_grid<T>);
});

}  // namespace
}  // namespace tapestry::kernels::cuda
