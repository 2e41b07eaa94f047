#pragma once
// Rows of the elementary functions of one tensor, and of the functions that round. f16 and bf16 are computed
// in f32 and rounded once. On GPUs these rows share kernels that select the row at run time.
#include <limits>
#include <numbers>
#include <type_traits>

#include "tapestry/kernels/ops/pointwise.h"

namespace tapestry::kernels {

template <FixedString kName, GradientFrom kFrom>
struct ElementaryRow : Function<kName, Takes::all_as_f32, kFrom> {
  static constexpr bool kElementary = true;
};

struct Sin : ElementaryRow<"sin", GradientFrom::input> {
  template <class M, class C>
  TAPESTRY_FORMULA C value(C x) {
    return M::sin(x);
  }
  template <class M, class C>
  TAPESTRY_FORMULA C gradient(C dy, C x) {
    return dy * M::cos(x);
  }
};
struct Cos : ElementaryRow<"cos", GradientFrom::input> {
  template <class M, class C>
  TAPESTRY_FORMULA C value(C x) {
    return M::cos(x);
  }
  template <class M, class C>
  TAPESTRY_FORMULA C gradient(C dy, C x) {
    return -dy * M::sin(x);
  }
};
struct Tan : ElementaryRow<"tan", GradientFrom::output> {
  static constexpr CastPolicy kCastOnGpus = CastPolicy::f32;
  template <class M, class C>
  TAPESTRY_FORMULA C value(C x) {
    return M::tan(x);
  }
  template <class M, class C>
  TAPESTRY_FORMULA C gradient(C dy, C y) {
    return dy * (1 + y * y);
  }
};
struct Asin : ElementaryRow<"asin", GradientFrom::input> {
  static constexpr CastPolicy kCastOnGpus = CastPolicy::f32;
  template <class M, class C>
  TAPESTRY_FORMULA C value(C x) {
    return M::asin(x);
  }
  template <class M, class C>
  TAPESTRY_FORMULA C gradient(C dy, C x) {
    return dy * M::rsqrt((1 - x) * (1 + x));
  }
};
struct Acos : ElementaryRow<"acos", GradientFrom::input> {
  static constexpr CastPolicy kCastOnGpus = CastPolicy::f32;
  template <class M, class C>
  TAPESTRY_FORMULA C value(C x) {
    return M::acos(x);
  }
  template <class M, class C>
  TAPESTRY_FORMULA C gradient(C dy, C x) {
    return -dy * M::rsqrt((1 - x) * (1 + x));
  }
};
struct Atan : ElementaryRow<"atan", GradientFrom::input> {
  template <class M, class C>
  TAPESTRY_FORMULA C value(C x) {
    return M::atan(x);
  }
  template <class M, class C>
  TAPESTRY_FORMULA C gradient(C dy, C x) {
    return dy / (x * x + 1);
  }
};
struct Sinh : ElementaryRow<"sinh", GradientFrom::input> {
  static constexpr CastPolicy kCastOnGpus = CastPolicy::f32;
  template <class M, class C>
  TAPESTRY_FORMULA C value(C x) {
    return M::sinh(x);
  }
  template <class M, class C>
  TAPESTRY_FORMULA C gradient(C dy, C x) {
    return dy * M::cosh(x);
  }
};
struct Cosh : ElementaryRow<"cosh", GradientFrom::input> {
  static constexpr CastPolicy kCastOnGpus = CastPolicy::f32;
  template <class M, class C>
  TAPESTRY_FORMULA C value(C x) {
    return M::cosh(x);
  }
  template <class M, class C>
  TAPESTRY_FORMULA C gradient(C dy, C x) {
    return dy * M::sinh(x);
  }
};
struct Asinh : ElementaryRow<"asinh", GradientFrom::input> {
  template <class M, class C>
  TAPESTRY_FORMULA C value(C x) {
    return M::asinh(x);
  }
  template <class M, class C>
  TAPESTRY_FORMULA C gradient(C dy, C x) {
    return dy * M::rsqrt(x * x + 1);
  }
};
struct Acosh : ElementaryRow<"acosh", GradientFrom::input> {
  template <class M, class C>
  TAPESTRY_FORMULA C value(C x) {
    return M::acosh(x);
  }
  template <class M, class C>
  TAPESTRY_FORMULA C gradient(C dy, C x) {
    return dy * M::rsqrt((x - 1) * (x + 1));
  }
};
struct Atanh : ElementaryRow<"atanh", GradientFrom::input> {
  template <class M, class C>
  TAPESTRY_FORMULA C value(C x) {
    return M::atanh(x);
  }
  template <class M, class C>
  TAPESTRY_FORMULA C gradient(C dy, C x) {
    return dy / ((1 - x) * (1 + x));
  }
};
struct Erf : ElementaryRow<"erf", GradientFrom::input> {
  template <class M, class C>
  TAPESTRY_FORMULA C value(C x) {
    return M::erf(x);
  }
  template <class M, class C>
  TAPESTRY_FORMULA C gradient(C dy, C x) {
    return dy * (C(2 * std::numbers::inv_sqrtpi) * M::exp_of_negative(-x * x));
  }
};
/// 1 - erf(x).
struct Erfc : ElementaryRow<"erfc", GradientFrom::input> {
  template <class M, class C>
  TAPESTRY_FORMULA C value(C x) {
    return M::erfc(x);
  }
  template <class M, class C>
  TAPESTRY_FORMULA C gradient(C dy, C x) {
    return dy * (C(-2 * std::numbers::inv_sqrtpi) * M::exp_of_negative(-x * x));
  }
};
/// The derivative of log(Gamma(x)). Its asymptotic series (Abramowitz and Stegun 1964, 6.3.18) is accurate
/// from kLeast on. Smaller x are increased by psi(x) = psi(x + 1) - 1 / x, and negative ones are reflected by
/// psi(x) = psi(1 - x) - pi / tan(pi x). The difference cancels near the zeros below 0, so the error there is
/// a few roundings of psi(1 - x), not of the result.
struct Digamma : ElementaryRow<"digamma", GradientFrom::input> {
  static constexpr bool kTwice = false;
  template <class C>
  static constexpr int kLeast = std::is_same_v<C, double> ? 10 : 6;
  /// Returns psi(v) for v >= 1, or psi(v + 1), where `one_more`, for v >= 0.
  template <class M, class C>
  TAPESTRY_FORMULA C of_positive(C v, bool one_more) {
    C y = one_more ? v + 1 : v, near = 0, below = 0;
    bool is_near = false;
    if constexpr (std::is_same_v<C, float>) {
      // On [1, 2), psi(y) is (y - root) p(y), which has a small relative error at the root too. The root is
      // the sum of two constants, and v - (root - 1) has no error from rounding v + 1. p interpolates at the
      // Chebyshev nodes; its relative error is 5e-9. From 2 on, few terms cancel if the series begins at 3.
      constexpr float root = 0x1.762d86p+0f, rest = 1.2438149938918910e-8f;
      const float d = (v - (one_more ? root - 1 : root)) - rest, t = y - 1.5f;
      float p = 0.0109025886726f;
      p = p * t - 0.0163736202553f;
      p = p * t + 0.0171149889997f;
      p = p * t - 0.0257868836313f;
      p = p * t + 0.0408500267408f;
      p = p * t - 0.0620559803861f;
      p = p * t + 0.0949846850749f;
      p = p * t - 0.148398861388f;
      p = p * t + 0.240542535015f;
      p = p * t - 0.423627497475f;
      p = p * t + 0.951055876032f;
      near = d * p;
      is_near = y < 2;
      const bool raised = y < 3;
      below = raised ? 1 / y : 0.0f;
      y += raised ? 1.0f : 0.0f;
    } else {
      for (int i = 0; i < kLeast<C>; ++i) {
        const bool raised = y < kLeast<C>;
        below += raised ? 1 / y : C(0);
        y += raised ? C(1) : C(0);
      }
    }
    const C inverse = 1 / y, z = inverse * inverse;
    C series = C(1.0 / 12);
    series = series * z - C(691.0 / 32760);
    series = series * z + C(1.0 / 132);
    series = series * z - C(1.0 / 240);
    series = series * z + C(1.0 / 252);
    series = series * z - C(1.0 / 120);
    series = series * z + C(1.0 / 12);
    const C far = M::log(y) - inverse / 2 - series * z - below;
    return is_near ? near : far;
  }
  template <class M, class C>
  TAPESTRY_FORMULA C value(C x) {
    constexpr C pi = std::numbers::pi_v<C>;
    const bool reflects = x < 0, raised = !reflects && x < 1;
    const C v = M::abs(x), psi = of_positive<M>(v, reflects || raised) - (raised ? 1 / v : C(0));
    // 1 / tan(pi f) is tan(pi (1/2 - f)), whose argument keeps its digits where the result is small.
    const C fraction = x - M::round_to_even(x), f = M::abs(fraction);
    const bool far = f > C(0.25);
    const C tangent = M::tan(pi * (far ? C(0.5) - f : f));
    const C size = pi * (far ? tangent : 1 / tangent);
    const C reflected = fraction == 0 ? fraction / fraction : psi - (fraction < 0 ? -size : size);
    return x == 0 ? -1 / x : reflects ? reflected : psi;
  }
  /// The derivative of value(): Abramowitz and Stegun 6.4.12, 6.4.6 and 6.4.7.
  template <class M, class C>
  TAPESTRY_FORMULA C gradient(C dy, C x) {
    constexpr C pi = std::numbers::pi_v<C>;
    const bool reflects = x < 0;
    C y = reflects ? 1 - x : x, below = 0;
    for (int i = 0; i < kLeast<C>; ++i) {
      const bool small = y < kLeast<C>;
      below += small ? 1 / (y * y) : C(0);
      y += small ? C(1) : C(0);
    }
    const C inverse = 1 / y, z = inverse * inverse;
    C series = C(7.0 / 6);
    series = series * z - C(691.0 / 2730);
    series = series * z + C(5.0 / 66);
    series = series * z - C(1.0 / 30);
    series = series * z + C(1.0 / 42);
    series = series * z - C(1.0 / 30);
    series = series * z + C(1.0 / 6);
    const C derivative = below + inverse + z / 2 + series * z * inverse;
    const C ratio = pi / M::sin(pi * (x - M::round_to_even(x)));
    return dy * (reflects ? ratio * ratio - derivative : derivative);
  }
};
/// log(|Gamma(x)|).
struct Lgamma : ElementaryRow<"lgamma", GradientFrom::input> {
  template <class M, class C>
  TAPESTRY_FORMULA C value(C x) {
    return M::lgamma(x);
  }
  template <class M, class C>
  TAPESTRY_FORMULA C gradient(C dy, C x) {
    return dy * value_of<Digamma, M>(x);
  }
};
/// The inverse of erf. In f32 it is computed by Giles's polynomials in -log(1 - x^2) ("Approximating the
/// erfinv function", 2010), with a relative error of 4e-7.
struct Erfinv : ElementaryRow<"erfinv", GradientFrom::output> {
  static constexpr CastPolicy kCastOnGpus = CastPolicy::f32;
  template <class M, class C>
  TAPESTRY_FORMULA C value(C x) {
    if constexpr (std::is_same_v<C, float>) {
      const float w = -M::log((1 - x) * (1 + x)), u = w - 2.5f, v = M::sqrt(w) - 3;
      float p = 2.81022636e-08f;
      p = p * u + 3.43273939e-07f;
      p = p * u - 3.5233877e-06f;
      p = p * u - 4.39150654e-06f;
      p = p * u + 0.00021858087f;
      p = p * u - 0.00125372503f;
      p = p * u - 0.00417768164f;
      p = p * u + 0.246640727f;
      p = p * u + 1.50140941f;
      float q = -0.000200214257f;
      q = q * v + 0.000100950558f;
      q = q * v + 0.00134934322f;
      q = q * v - 0.00367342844f;
      q = q * v + 0.00573950773f;
      q = q * v - 0.0076224613f;
      q = q * v + 0.00943887047f;
      q = q * v + 1.00167406f;
      q = q * v + 2.83297682f;
      const float y = x * (w < 5 ? p : q);
      return M::abs(x) == 1 ? M::copysign(std::numeric_limits<float>::infinity(), x) : y;
    } else {
      return M::erfinv(x);
    }
  }
  template <class M, class C>
  TAPESTRY_FORMULA C gradient(C dy, C y) {
    return dy * (C(0.5 / std::numbers::inv_sqrtpi) * M::exp(y * y));
  }
};
struct Expm1 : ElementaryRow<"expm1", GradientFrom::output> {
  static constexpr CastPolicy kCastOnGpus = CastPolicy::f32;
  template <class M, class C>
  TAPESTRY_FORMULA C value(C x) {
    return M::expm1(x);
  }
  template <class M, class C>
  TAPESTRY_FORMULA C gradient(C dy, C y) {
    return dy * (y + 1);
  }
};
struct Exp2 : ElementaryRow<"exp2", GradientFrom::output> {
  template <class M, class C>
  TAPESTRY_FORMULA C value(C x) {
    return M::exp2(x);
  }
  template <class M, class C>
  TAPESTRY_FORMULA C gradient(C dy, C y) {
    return dy * (y * C(std::numbers::ln2));
  }
};
struct Log1p : ElementaryRow<"log1p", GradientFrom::input> {
  static constexpr CastPolicy kCastOnGpus = CastPolicy::f32;
  template <class M, class C>
  TAPESTRY_FORMULA C value(C x) {
    return M::log1p(x);
  }
  template <class M, class C>
  TAPESTRY_FORMULA C gradient(C dy, C x) {
    return dy / (1 + x);
  }
};
struct Log2 : ElementaryRow<"log2", GradientFrom::input> {
  static constexpr CastPolicy kCastOnGpus = CastPolicy::f32;
  template <class M, class C>
  TAPESTRY_FORMULA C value(C x) {
    return M::log2(x);
  }
  template <class M, class C>
  TAPESTRY_FORMULA C gradient(C dy, C x) {
    return dy / (x * C(std::numbers::ln2));
  }
};
struct Log10 : ElementaryRow<"log10", GradientFrom::input> {
  static constexpr CastPolicy kCastOnGpus = CastPolicy::f32;
  template <class M, class C>
  TAPESTRY_FORMULA C value(C x) {
    return M::log10(x);
  }
  template <class M, class C>
  TAPESTRY_FORMULA C gradient(C dy, C x) {
    return dy / (x * C(std::numbers::ln10));
  }
};
struct Floor : Step<"floor"> {
  template <class M, class C>
  TAPESTRY_FORMULA C value(C x) {
    return M::floor(x);
  }
};
struct Ceil : Step<"ceil"> {
  template <class M, class C>
  TAPESTRY_FORMULA C value(C x) {
    return M::ceil(x);
  }
};
struct Round : Step<"round"> {
  template <class M, class C>
  TAPESTRY_FORMULA C value(C x) {
    return M::round_to_even(x);
  }
};
struct Trunc : Step<"trunc"> {
  template <class M, class C>
  TAPESTRY_FORMULA C value(C x) {
    return M::trunc(x);
  }
};
/// The part of x behind the decimal point, with the sign of x. Its gradient is that of x.
struct Frac : Step<"frac"> {
  template <class M, class C>
  TAPESTRY_FORMULA C value(C x) {
    return x - M::trunc(x);
  }
};
struct Sign : Step<"sign"> {
  template <class M, class C>
  TAPESTRY_FORMULA C value(C x) {
    return M::sign(x);
  }
};

using Elementary =
    RowList<Sin, Cos, Tan, Asin, Acos, Atan, Sinh, Cosh, Asinh, Acosh, Atanh, Erf, Erfinv, Erfc, Digamma,
            Lgamma, Expm1, Exp2, Log1p, Log2, Log10, Floor, Ceil, Round, Trunc, Frac, Sign>;

}  // namespace tapestry::kernels
