#include "tapestry/kernels/cuda/compare.cuh"

namespace tapestry::kernels::cuda {
namespace {

constexpr DeviceType kDevice = DeviceType::cuda;

/// Registers the comparisons of elements of type T for dtype `t`.
template <class T>
void fill_comparisons(DType t = dtype_of<T>) {
  eq.set(kDevice, t, &launch_compare<T, kEqual>);
  ne.set(kDevice, t, &launch_compare<T, kLess | kGreater | kUnordered>);
  lt.set(kDevice, t, &launch_compare<T, kLess>);
  le.set(kDevice, t, &launch_compare<T, kLess | kEqual>);
  eq_scalar.set(kDevice, t, &launch_compare_scalar<T, kEqual>);
  ne_scalar.set(kDevice, t, &launch_compare_scalar<T, kLess | kGreater | kUnordered>);
  lt_scalar.set(kDevice, t, &launch_compare_scalar<T, kLess>);
  le_scalar.set(kDevice, t, &launch_compare_scalar<T, kLess | kEqual>);
  gt_scalar.set(kDevice, t, &launch_compare_scalar<T, kGreater>);
  ge_scalar.set(kDevice, t, &launch_compare_scalar<T, kGreater | kEqual>);
  isclose.set(kDevice, t, &launch_isclose<T>);
}

const bool filled = [] {
  for_types<float, BFloat16, std::int64_t, std::int32_t, std::uint8_t>(
      []<class T>() { fill_comparisons<T>(); });
  fill_comparisons<std::uint8_t>(DType::boolean);
  for_types<float, BFloat16>([]<class T>() { isnan.set(kDevice, dtype_of<T>, &launch_isnan<T>); });
  for_types<float, double, Half, BFloat16, std::int64_t, std::int32_t, std::uint8_t, bool>([]<class T>() {
    where.set(kDevice, dtype_of<T>, &launch_where<T>);
    masked.set(kDevice, dtype_of<T>, &launch_masked<T>);
  });
  return true;
}();

}  // namespace
}  // namespace tapestry::kernels::cuda
