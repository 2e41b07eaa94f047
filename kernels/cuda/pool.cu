#include "tapestry/kernels/cuda/pool.cuh"

namespace tapestry::kernels::cuda {
namespace {

template <class T>
void max(const Pool2d& s, const void* x, void* y, void* places) {
  launch_max_pool2d<T>(s, x, y, places, kernel_stream());
}
template <class T>
void max_backward(const Pool2d& s, const void* dy, const void* places, void* dx) {
  launch_max_pool2d_backward<T>(s, dy, places, dx, kernel_stream());
}
template <class T, bool adaptive>
void average(const Pool2d& s, const void* x, void* y) {
  launch_average_pool<T>(s, adaptive, x, y, kernel_stream());
}
template <class T, bool adaptive>
void average_backward(const Pool2d& s, const void* dy, void* dx) {
  launch_average_pool_backward<T>(s, adaptive, dy, dx, kernel_stream());
}

const bool filled = for_types<float, BFloat16>([]<class T>() {
  constexpr DeviceType device = DeviceType::cuda;
  constexpr DType t = dtype_of<T>;
  max_pool2d.set(device, t, &max<T>);
  max_pool2d_backward.set(device, t, &max_backward<T>);
  avg_pool2d.set(device, t, &average<T, false>);
  avg_pool2d_backward.set(device, t, &average_backward<T, false>);
  adaptive_avg_pool2d.set(device, t, &average<T, true>);
  adaptive_avg_pool2d_backward.set(device, t, &average_backward<T, true>);
});

}  // namespace
}  // namespace tapestry::kernels::cuda
