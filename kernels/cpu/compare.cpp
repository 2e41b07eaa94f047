// Comparisons and choices.
#include <cmath>
#include <functional>

#include "tapestry/kernels/cpu/loops.h"
#include "tapestry/kernels/ops/elementwise.h"

namespace tapestry::kernels {
namespace {

using cpu::Compute;
using cpu::convert_scalar;
using cpu::map;

constexpr DeviceType kDevice = DeviceType::cpu;

template <class T, class F>
void compare(const Elementwise<3>& e) {
  map<bool, T, T>(e, F{});
}
template <class T, class F>
void compare_scalar(const Elementwise<2>& e, Scalar scalar) {
  if constexpr (is_floating(dtype_of<T>)) {
    const auto s = convert_scalar<Compute<T>>(scalar);
    map<bool, T>(e, [s](Compute<T> x) { return F{}(x, s); });
  } else {
    const std::int64_t s = scalar.to_int();
    map<bool, T>(e, [s](T x) { return F{}(static_cast<std::int64_t>(x), s); });
  }
}
template <class T>
void isnan_kernel(const Elementwise<2>& e) {
  map<bool, T>(e, [](Compute<T> x) { return x != x; });
}
template <class T>
void isclose_kernel(const Elementwise<3>& e, double rtol, double atol, bool equal_nan) {
  map<bool, T, T>(e, [=](Compute<T> x, Compute<T> y) {
    if (x == y) return true;
    const double a = static_cast<double>(x), b = static_cast<double>(y);
    if (equal_nan && a != a && b != b) return true;
    // An infinite b would allow any difference.
    return std::isfinite(a) && std::isfinite(b) && std::abs(a - b) <= atol + std::abs(rtol * b);
  });
}
// Conditions are read as bytes: loops over bool are not vectorised.
template <class T>
void where_kernel(const Elementwise<4>& e) {
  using C = Compute<T>;
  map<T, std::uint8_t, T, T>(e, [](std::uint8_t condition, C a, C b) { return condition ? a : b; });
}
template <class T>
void masked_kernel(const Elementwise<3>& e, bool keep) {
  using C = Compute<T>;
  map<T, std::uint8_t, T>(
      e, [keep](std::uint8_t condition, C x) { return (condition != 0) == keep ? x : C(0); });
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
}  // namespace tapestry::kernels
