// CPU kernels of comparisons and choices.
#include "tapestry/kernels/ops/compare.h"

#include <functional>

#include "tapestry/kernels/cpu/pointwise.h"

namespace tapestry::kernels::cpu {
namespace {

constexpr DeviceType kDevice = DeviceType::cpu;

// Each comparison has a loop of its own, which is vectorised. The GPU has one kernel for all of them.
template <class T, class F>
void compare(const LaunchContext&, const Elementwise<3>& e) {
  map<bool, T, T>(e, F{});
}
template <class T, class F>
void compare_scalar(const LaunchContext&, const ScalarArgs& a) {
  if constexpr (is_floating(dtype_of<T>)) {
    const auto s = convert_scalar<Compute<T>>(a.scalar);
    map<bool, T>(a.operands, [s](Compute<T> x) { return F{}(x, s); });
  } else {
    const std::int64_t s = a.scalar.to_int();
    map<bool, T>(a.operands, [s](T x) { return F{}(static_cast<std::int64_t>(x), s); });
  }
}
template <class T>
void isnan_kernel(const LaunchContext&, const Elementwise<2>& e) {
  map<bool, T>(e, [](Compute<T> x) { return IsNan::value(x); });
}
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

const bool filled =
    for_types<float, double, Half, BFloat16, std::int64_t, std::int32_t, std::uint8_t, bool>([]<class T>() {
      constexpr DType t = dtype_of<T>;
      eq.set(kDevice, t, &compare<T, std::equal_to<>>);
      ne.set(kDevice, t, &compare<T, std::not_equal_to<>>);
      lt.set(kDevice, t, &compare<T, std::less<>>);
      le.set(kDevice, t, &compare<T, std::less_equal<>>);
      eq_scalar.set(kDevice, t, &compare_scalar<T, std::equal_to<>>);
      ne_scalar.set(kDevice, t, &compare_scalar<T, std::not_equal_to<>>);
      lt_scalar.set(kDevice, t, &compare_scalar<T, std::less<>>);
      le_scalar.set(kDevice, t, &compare_scalar<T, std::less_equal<>>);
      gt_scalar.set(kDevice, t, &compare_scalar<T, std::greater<>>);
      ge_scalar.set(kDevice, t, &compare_scalar<T, std::greater_equal<>>);
      isclose.set(kDevice, t, &isclose_kernel<T>);
      where.set(kDevice, t, &where_kernel<T>);
      masked.set(kDevice, t, &masked_kernel<T>);
      if constexpr (is_floating(t)) isnan.set(kDevice, t, &isnan_kernel<T>);
    });

}  // namespace
}  // namespace tapestry::kernels::cpu
