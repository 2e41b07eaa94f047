// CPU kernels of comparisons and choices.
#include "tapestry/kernels/ops/compare.h"

#include "tapestry/kernels/cpu/pointwise.h"

namespace tapestry::kernels::cpu {
namespace {

template <class C>
void isclose_kernel(const LaunchContext&, const IsCloseArgs& a) {
  map<bool, C, C>(a.operands, [rtol = a.rtol, atol = a.atol, equal_nan = a.equal_nan](C x, C y) {
    return IsClose::value(x, y, rtol, atol, equal_nan);
  });
}
// Conditions are read as bytes, because loops over bool are not vectorised.
template <class C>
void where_kernel(const LaunchContext&, const Elementwise<4>& e) {
  map<C, std::uint8_t, C, C>(e,
                             [](std::uint8_t condition, C a, C b) { return Where::value(condition, a, b); });
}
template <class C>
void masked_kernel(const LaunchContext&, const MaskedArgs& a) {
  map<C, std::uint8_t, C>(
      a.operands, [keep = a.keep](std::uint8_t condition, C x) { return Masked::value(condition, x, keep); });
}

// Each comparison has a loop of its own, which is vectorised. The GPU has one kernel for all of them.
const bool rows = for_kernels_of(Comparisons(), []<class Row>() { register_pointwise<Row>(); });
const bool others = [] {
  register_pointwise<IsNan>();
  for_dtypes<kAllDTypes>([]<class T>() {
    constexpr DType t = dtype_of<T>;
    isclose.set(DeviceType::cpu, t, &isclose_kernel<Compute<T>>);
    where.set(DeviceType::cpu, t, &where_kernel<Compute<T>>);
    masked.set(DeviceType::cpu, t, &masked_kernel<Compute<T>>);
  });
  return true;
}();

}  // namespace
}  // namespace tapestry::kernels::cpu
