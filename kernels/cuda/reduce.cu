#include "tapestry/kernels/cuda/reduce.cuh"

namespace tapestry::kernels::cuda {

// Compiled once, in max.cu.
extern template void launch_extreme<float>(const Reduce&, bool, bool, std::int64_t*, cudaStream_t);
extern template void launch_extreme<BFloat16>(const Reduce&, bool, bool, std::int64_t*, cudaStream_t);

namespace {

constexpr DeviceType kDevice = DeviceType::cuda;

template <class T>
void sum_kernel(const Reduce& r, double divisor) {
  launch_sum<T>(r, divisor, kernel_stream());
}
template <class T>
void variance_kernel(const Reduce& r, const void* mean, double divisor) {
  launch_variance<T>(r, mean, divisor, kernel_stream());
}
template <class T>
void logsumexp_kernel(const Reduce& r, const void* max) {
  launch_logsumexp<T>(r, max, kernel_stream());
}
template <class T>
void norm_kernel(const Reduce& r, double p) {
  launch_norm<T>(r, p, kernel_stream());
}
template <class T>
void norm_backward_kernel(const Elementwise<4>& e, double p) {
  launch_norm_backward<T>(e, p, kernel_stream());
}

const bool filled = [] {
  for_types<float, BFloat16>([]<class T>() {
    sum.set(kDevice, dtype_of<T>, &sum_kernel<T>);
    variance.set(kDevice, dtype_of<T>, &variance_kernel<T>);
    logsumexp.set(kDevice, dtype_of<T>, &logsumexp_kernel<T>);
    norm.set(kDevice, dtype_of<T>, &norm_kernel<T>);
    norm_backward.set(kDevice, dtype_of<T>, &norm_backward_kernel<T>);
  });
  for_types<std::int64_t, std::int32_t, std::uint8_t>(
      []<class T>() { sum.set(kDevice, dtype_of<T>, &sum_kernel<T>); });
  sum.set(kDevice, DType::boolean, &sum_kernel<std::uint8_t>);
  return true;
}();

}  // namespace
}  // namespace tapestry::kernels::cuda
