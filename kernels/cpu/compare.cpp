// CPU kernels of comparisons and choices.
#include "tapestry/kernels/ops/compare.h"

#include "tapestry/kernels/cpu/pointwise.h"

namespace tapestry::kernels::cpu {
namespace {

template <class T>
void isclose_kernel(const LaunchContext&, const IsCloseArgs& a) {
  map<bool, T, T>(a.operands,
                  [rtol = a.rtol, atol = a.atol, equal_nan = a.equal_nan](Compute<T> x, Compute<T> y) {
                    return IsClose::value(x, y, rtol, atol, equal_nan);
                  });
}
// Conditions are read as bytes, because loops over bool are not vectorised.
template <class T>
void where_kernel(const LaunchContext&, const Elementwise<4>& e) {
  using C = Compute<T>;
  map<T, std::uint8_t, T, T>(e,
                             [](std::uint8_t condition, C a, C b) { return Where::value(condition, a, b); });
}
template <class T>
void masked_kernel(const LaunchContext&, const MaskedArgs& a) {
  using C = Compute<T>;
  map<T, std::uint8_t, T>(
      a.operands, [keep = a.keep](std::uint8_t condition, C x) { return Masked::value(condition, x, keep); });
}

// Each comparison has a loop of its own, which is vectorised. The GPU has one kernel for all of them.
const bool rows = for_kernels_of(Comparisons(), []<class Row>() { register_pointwise<Row>(); });
const bool others = [] {
  register_pointwise<IsNan>();
  for_dtypes<kAllDTypes>([]<class T>() {
    constexpr DType t = dtype_of<T>;
    isclose.set(DeviceType::cpu, t, &isclose_kernel<T>);
    where.set(DeviceType::cpu, t, &where_kernel<T>);
    masked.set(DeviceType::cpu, t, &masked_kernel<T>);
  });
  return true;
}();

}  // namespace
}  // namespace tapestry::kernels::cpu
