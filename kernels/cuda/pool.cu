#include "tapestry/kernels/cuda/pool.cuh"

namespace tapestry::kernels::cuda {
namespace {

const bool pool_filled = for_types<float, BFloat16>([]<class T>() {
  constexpr DeviceType device = DeviceType::cuda;
  constexpr DType t = dtype_of<T>;
  max_pool2d.set(device, t, &launch_max_pool2d<T>);
  max_pool2d_backward.set(device, t, &launch_max_pool2d_backward<T>);
  avg_pool2d.set(device, t, &launch_average_pool<T, false>);
  avg_pool2d_backward.set(device, t, &launch_average_pool_backward<T, false>);
  adaptive_avg_pool2d.set(device, t, &launch_average_pool<T, true>);
  adaptive_avg_pool2d_backward.set(device, t, &launch_average_pool_backward<T, true>);
});

}  // namespace
}  // namespace tapestry::kernels::cuda
