#include "tapestry/kernels/cuda/copy.cuh"

namespace tapestry::kernels::cuda {
namespace {

template <class T>
void copy_kernel(const Elementwise<2>& e) {
  launch_copy<T>(e, kernel_stream());
}
template <class T>
void fill_kernel(const Elementwise<1>& e, Scalar value) {
  launch_fill<T>(e, value, kernel_stream());
}

const bool filled =
    for_types<float, double, Half, BFloat16, std::int64_t, std::int32_t, std::uint8_t, bool>([]<class T>() {
      copy.set(DeviceType::cuda, dtype_of<T>, &copy_kernel<T>);
      fill.set(DeviceType::cuda, dtype_of<T>, &fill_kernel<T>);
    });

}  // namespace
}  // namespace tapestry::kernels::cuda
