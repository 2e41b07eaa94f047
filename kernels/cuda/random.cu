#include "tapestry/kernels/cuda/random.cuh"

namespace tapestry::kernels::cuda {
namespace {

constexpr DeviceType kDevice = DeviceType::cuda;

template <class T>
void uniform_kernel(void* out, std::int64_t n, PhiloxRange range, double low, double high) {
  launch_uniform<T>(out, n, range, low, high, kernel_stream());
}
template <class T>
void normal_kernel(void* out, std::int64_t n, PhiloxRange range, double mean, double std) {
  launch_normal<T>(out, n, range, mean, std, kernel_stream());
}
template <class T>
void dropout_kernel(void* out, const void* x, std::int64_t n, PhiloxRange range, std::uint32_t threshold,
                    double scale) {
  launch_dropout<T>(out, x, n, range, threshold, scale, kernel_stream());
}
template <class T>
void randint_kernel(void* out, std::int64_t n, PhiloxRange range, std::int64_t low, std::uint64_t span) {
  launch_randint<T>(out, n, range, low, span, kernel_stream());
}
template <class T>
void arange_kernel(void* out, std::int64_t n, Scalar start, Scalar step) {
  launch_arange<T>(out, n, start, step, kernel_stream());
}
void randperm_kernel(void* out, std::int64_t n, PhiloxRange range) {
  launch_randperm(out, n, range, kernel_stream());
}

const bool filled = [] {
  for_types<float, BFloat16>([]<class T>() {
    uniform.set(kDevice, dtype_of<T>, &uniform_kernel<T>);
    normal.set(kDevice, dtype_of<T>, &normal_kernel<T>);
    dropout.set(kDevice, dtype_of<T>, &dropout_kernel<T>);
  });
  for_types<float, BFloat16, std::int64_t, std::int32_t, std::uint8_t>([]<class T>() {
    randint.set(kDevice, dtype_of<T>, &randint_kernel<T>);
    arange.set(kDevice, dtype_of<T>, &arange_kernel<T>);
  });
  randperm.set(kDevice, DType::i64, &randperm_kernel);
  return true;
}();

}  // namespace
}  // namespace tapestry::kernels::cuda
