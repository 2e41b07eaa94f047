#include "tapestry/kernels/cuda/compare.cuh"

namespace tapestry::kernels::cuda {
namespace {

/// Registers the comparisons of elements of type T for dtype `t`.
template <class T>
void register_comparisons(DType t = dtype_of<T>) {
  for_rows_of(Comparisons(), [t]<class Row>() {
    slot<Row>.set(kDevice, t, &launch_compare<Row, T>);
    slot<WithNumber<Row, 1>>.set(kDevice, t, &launch_compare_with<Row, T>);
  });
  isclose.set(kDevice, t, &launch_isclose<T>);
}

const bool compare_filled = [] {
  for_types<float, Half, BFloat16, std::int64_t, std::int32_t, std::uint8_t>(
      []<class T>() { register_comparisons<T>(); });
  register_comparisons<std::uint8_t>(DType::boolean);
  register_pointwise<IsNan>();
  for_types<float, double, Half, BFloat16, std::int64_t, std::int32_t, std::uint8_t, bool>([]<class T>() {
    where.set(kDevice, dtype_of<T>, &launch_where<T>);
    masked.set(kDevice, dtype_of<T>, &launch_masked<T>);
  });
  return true;
}();

}  // namespace
}  // namespace tapestry::kernels::cuda
