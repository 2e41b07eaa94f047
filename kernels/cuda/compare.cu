#include "tapestry/kernels/cuda/compare.cuh"

namespace tapestry::kernels::cuda {
namespace {

constexpr DeviceType kDevice = DeviceType::cuda;

template <class T, unsigned accepted>
void compare(const Elementwise<3>& e) {
  launch_compare<T>(e, accepted, kernel_stream());
}
template <class T, unsigned accepted>
void compare_scalar(const Elementwise<2>& e, Scalar s) {
  launch_compare_scalar<T>(e, accepted, s, kernel_stream());
}
template <class T>
void isnan_kernel(const Elementwise<2>& e) {
  launch_isnan<T>(e, kernel_stream());
}
template <class T>
void isclose_kernel(const Elementwise<3>& e, double rtol, double atol, bool equal_nan) {
  launch_isclose<T>(e, rtol, atol, equal_nan, kernel_stream());
}
template <class T>
void where_kernel(const Elementwise<4>& e) {
  launch_where<T>(e, kernel_stream());
}
template <class T>
void masked_kernel(const Elementwise<3>& e, bool keep) {
  launch_masked<T>(e, keep, kernel_stream());
}

/// Of T, for the dtype `t`.
template <class T>
void fill_comparisons(DType t = dtype_of<T>) {
  eq.set(kDevice, t, &compare<T, kEqual>);
  ne.set(kDevice, t, &compare<T, kLess | kGreater | kUnordered>);
  lt.set(kDevice, t, &compare<T, kLess>);
  le.set(kDevice, t, &compare<T, kLess | kEqual>);
  eq_scalar.set(kDevice, t, &compare_scalar<T, kEqual>);
  ne_scalar.set(kDevice, t, &compare_scalar<T, kLess | kGreater | kUnordered>);
  lt_scalar.set(kDevice, t, &compare_scalar<T, kLess>);
  le_scalar.set(kDevice, t, &compare_scalar<T, kLess | kEqual>);
  gt_scalar.set(kDevice, t, &compare_scalar<T, kGreater>);
  ge_scalar.set(kDevice, t, &compare_scalar<T, kGreater | kEqual>);
  isclose.set(kDevice, t, &isclose_kernel<T>);
}

const bool filled = [] {
  for_types<float, BFloat16, std::int64_t, std::int32_t, std::uint8_t>(
      []<class T>() { fill_comparisons<T>(); });
  fill_comparisons<std::uint8_t>(DType::boolean);
  for_types<float, BFloat16>([]<class T>() { isnan.set(kDevice, dtype_of<T>, &isnan_kernel<T>); });
  for_types<float, double, Half, BFloat16, std::int64_t, std::int32_t, std::uint8_t, bool>([]<class T>() {
    where.set(kDevice, dtype_of<T>, &where_kernel<T>);
    masked.set(kDevice, dtype_of<T>, &masked_kernel<T>);
  });
  return true;
}();

}  // namespace
}  // namespace tapestry::kernels::cuda
