// Arithmetic: add, sub, mul, div, pow, maximum, minimum, with a tensor or a number, and their gradients.
#include <cmath>

#include "tapestry/kernels/cpu/loops.h"
#include "tapestry/kernels/ops/elementwise.h"

namespace tapestry::kernels {
namespace {

using cpu::Compute;
using cpu::convert_scalar;
using cpu::map;

constexpr DeviceType kDevice = DeviceType::cpu;

// Integers wrap: computed without a sign, where overflow is defined.
template <class C>
using Wrapping = typename std::conditional_t<std::is_integral_v<C> && !std::is_same_v<C, bool>,
                                             std::make_unsigned<C>, std::type_identity<C>>::type;

struct Add {
  template <class C>
  C operator()(C a, C b) const {
    if constexpr (std::is_same_v<C, bool>) return a || b;
    else return static_cast<C>(static_cast<Wrapping<C>>(a) + static_cast<Wrapping<C>>(b));
  }
};
struct Sub {
  template <class C>
  C operator()(C a, C b) const {
    return static_cast<C>(static_cast<Wrapping<C>>(a) - static_cast<Wrapping<C>>(b));
  }
};
struct Mul {
  template <class C>
  C operator()(C a, C b) const {
    if constexpr (std::is_same_v<C, bool>) return a && b;
    else return static_cast<C>(static_cast<Wrapping<C>>(a) * static_cast<Wrapping<C>>(b));
  }
};
struct Div {
  template <class C>
  C operator()(C a, C b) const {
    return a / b;
  }
};
struct Maximum {
  template <class C>
  C operator()(C a, C b) const {
    return a > b || a != a ? a : b;  // NaN: a itself, or b because no comparison with it holds
  }
};
struct Minimum {
  template <class C>
  C operator()(C a, C b) const {
    return a < b || a != a ? a : b;
  }
};
struct Pow {
  template <class C>
  C operator()(C a, C b) const {
    if constexpr (std::is_floating_point_v<C>) {
      return std::pow(a, b);
    } else {
      if constexpr (std::is_signed_v<C>)
        if (b < 0) return a == 1 ? 1 : a == -1 ? (b % 2 ? -1 : 1) : 0;
      C result = 1;
      for (; b; b = static_cast<C>(b >> 1)) {
        if (b & 1) result = Mul{}(result, a);
        a = Mul{}(a, a);
      }
      return result;
    }
  }
};

template <class T, class F>
void binary(const Elementwise<3>& e) {
  map<T, T, T>(e, F{});
}
// f(x, s)
template <class T, class F>
void with_scalar(const Elementwise<2>& e, Scalar scalar) {
  const auto s = convert_scalar<Compute<T>>(scalar);
  map<T, T>(e, [s](Compute<T> x) { return F{}(x, s); });
}
// f(s, x)
template <class T, class F>
void scalar_with(const Elementwise<2>& e, Scalar scalar) {
  const auto s = convert_scalar<Compute<T>>(scalar);
  map<T, T>(e, [s](Compute<T> x) { return F{}(s, x); });
}

// Common exponents without the library's pow: as exact, and vectorised.
template <class T>
void pow_scalar_kernel(const Elementwise<2>& e, Scalar scalar) {
  using C = Compute<T>;
  if constexpr (std::is_floating_point_v<C>) {
    const double s = scalar.to_double();
    if (s == 2) return map<T, T>(e, [](C x) { return x * x; });
    if (s == 3) return map<T, T>(e, [](C x) { return x * x * x; });
    if (s == 1) return map<T, T>(e, [](C x) { return x; });
    if (s == -1) return map<T, T>(e, [](C x) { return 1 / x; });
    if (s == 0.5) return map<T, T>(e, [](C x) { return std::sqrt(x); });
  }
  with_scalar<T, Pow>(e, scalar);
}

template <class T>
void pow_scalar_backward_kernel(const Elementwise<3>& e, Scalar scalar) {
  using C = Compute<T>;
  const C s = convert_scalar<C>(scalar);
  if (s == 0) return map<T, T, T>(e, [](C, C) { return C(0); });
  if (s == 2) return map<T, T, T>(e, [](C dy, C x) { return dy * (2 * x); });
  if (s == 3) return map<T, T, T>(e, [](C dy, C x) { return dy * (3 * (x * x)); });
  map<T, T, T>(e, [s](C dy, C x) { return dy * (s * std::pow(x, s - 1)); });
}
template <class T>
void div_backward_kernel(const Elementwise<4>& e) {
  using C = Compute<T>;
  map<T, T, T, T>(e, [](C dy, C a, C b) { return -dy * ((a / b) / b); });
}
template <class T>
void pow_backward_base_kernel(const Elementwise<4>& e) {
  using C = Compute<T>;
  map<T, T, T, T>(e, [](C dy, C a, C b) { return b == 0 ? C(0) : dy * (b * std::pow(a, b - 1)); });
}
template <class T>
void pow_backward_exponent_kernel(const Elementwise<4>& e) {
  using C = Compute<T>;
  map<T, T, T, T>(
      e, [](C dy, C a, C b) { return a == 0 && b >= 0 ? C(0) : dy * (std::pow(a, b) * std::log(a)); });
}
template <class T>
void maximum_backward_kernel(const Elementwise<4>& e) {
  using C = Compute<T>;
  map<T, T, T, T>(e, [](C dy, C a, C b) { return a < b ? C(0) : a == b ? dy / 2 : dy; });
}
template <class T>
void minimum_backward_kernel(const Elementwise<4>& e) {
  using C = Compute<T>;
  map<T, T, T, T>(e, [](C dy, C a, C b) { return a > b ? C(0) : a == b ? dy / 2 : dy; });
}

const bool for_floats = for_types<float, double, Half, BFloat16>([]<class T>() {
  constexpr DType t = dtype_of<T>;
  div.set(kDevice, t, &binary<T, Div>);
  div_scalar.set(kDevice, t, &with_scalar<T, Div>);
  rdiv_scalar.set(kDevice, t, &scalar_with<T, Div>);
  div_backward.set(kDevice, t, &div_backward_kernel<T>);
  pow_scalar_backward.set(kDevice, t, &pow_scalar_backward_kernel<T>);
  pow_backward_base.set(kDevice, t, &pow_backward_base_kernel<T>);
  pow_backward_exponent.set(kDevice, t, &pow_backward_exponent_kernel<T>);
  maximum_backward.set(kDevice, t, &maximum_backward_kernel<T>);
  minimum_backward.set(kDevice, t, &minimum_backward_kernel<T>);
});
const bool for_numbers =
    for_types<float, double, Half, BFloat16, std::int64_t, std::int32_t, std::uint8_t>([]<class T>() {
      constexpr DType t = dtype_of<T>;
      sub.set(kDevice, t, &binary<T, Sub>);
      pow.set(kDevice, t, &binary<T, Pow>);
      rsub_scalar.set(kDevice, t, &scalar_with<T, Sub>);
      pow_scalar.set(kDevice, t, &pow_scalar_kernel<T>);
    });
const bool for_all =
    for_types<float, double, Half, BFloat16, std::int64_t, std::int32_t, std::uint8_t, bool>([]<class T>() {
      constexpr DType t = dtype_of<T>;
      add.set(kDevice, t, &binary<T, Add>);
      mul.set(kDevice, t, &binary<T, Mul>);
      maximum.set(kDevice, t, &binary<T, Maximum>);
      minimum.set(kDevice, t, &binary<T, Minimum>);
      add_scalar.set(kDevice, t, &with_scalar<T, Add>);
      mul_scalar.set(kDevice, t, &with_scalar<T, Mul>);
    });

}  // namespace
}  // namespace tapestry::kernels
