#pragma once
// Elementary functions for the formulas of CPU kernels. The f32 versions of log, tanh, atan2 and the normal
// distribution function are written here without branches or calls, so that loops over them are vectorised.
// They are accurate to a few units in the last place, and give NaN, infinities and denormals where the
// standard library does. Unless a comment names another source, their coefficients minimise the largest
// relative error (Remez's algorithm). The f64 versions of these four call the standard library.
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>

#include "tapestry/kernels/cpu/exp.h"

namespace tapestry::kernels::cpu {

inline double log(double x) { return std::log(x); }
/// log(x). Writes x = 2^e m with m in [sqrt(1/2), sqrt(2)), and computes log(m) = 2 atanh(s) with s = (m - 1)
/// / (m + 1). As in Sun's fdlibm, the terms are arranged so that only small terms are rounded.
inline float log(float x) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const bool denormal = x < std::numeric_limits<float>::min();
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(denormal ? x * 0x1p25f : x);
  const std::int32_t e = static_cast<std::int32_t>(bits - 0x3f3504f3u) >> 23;  // sqrt(1/2) is 0x3f3504f3
  const float f = std::bit_cast<float>(bits - (static_cast<std::uint32_t>(e) << 23)) - 1;
  const float n = static_cast<float>(denormal ? e - 25 : e);
  const float s = f / (2 + f), z = s * s, half_square = 0.5f * f * f;
  const float r = z * (0.666666665541f + z * (0.400001220951f + z * (0.285507976338f + z * 0.233309930331f)));
  constexpr float ln2_high = 0x1.62e3p-1f, ln2_low = 9.05800135156e-06f;
  float y = n * ln2_high - ((half_square - (s * (half_square + r) + n * ln2_low)) - f);
  y = x == infinity || x != x ? x : y;
  y = x == 0 ? -infinity : y;
  return x < 0 ? std::numeric_limits<float>::quiet_NaN() : y;
}

inline double tanh(double x) { return std::tanh(x); }
/// tanh(x). Near 0 it is an odd polynomial. Elsewhere it is 1 - 2 / (e^2|x| + 1) with the sign of x.
inline float tanh(float x) {
  const float z = x * x;
  const float p =
      -0.333333289485f +
      z * (0.133327700853f + z * (-0.0538509536639f + z * (0.0209973583309f - z * 0.00609694255729f)));
  const float a = std::abs(x);
  const float large = std::copysign(1 - 2 / (fast_exp(2 * a) + 1), x);
  return a < 0.625f ? x + x * z * p : large;
}

inline double atan2(double y, double x) { return std::atan2(y, x); }
/// The angle of the point (x, y). Computes atan(q) for the quotient q <= 1 of the smaller and the larger
/// coordinate, by the polynomial of Cephes' atanf(), and reflects the result into the octant of the point.
/// For q > tan(pi / 8), atan(q) = pi / 4 + atan((q - 1) / (q + 1)).
inline float atan2(float y, float x) {
  const float width = std::abs(x), height = std::abs(y);
  const float low = width < height ? width : height, high = width < height ? height : width;
  const float q = high == 0 ? 0 : low == high ? 1 : low / high;  // 0 / 0 gives 0, infinity / infinity gives 1
  const bool above = q > 0.41421356f;                            // tan(pi / 8)
  const float t = above ? (q - 1) / (q + 1) : q, z = t * t;
  const float p = -0.333329491539f + z * (0.199777106478f + z * (-0.138776856032f + z * 0.0805374449538f));
  constexpr float pi = std::numbers::pi_v<float>, pi_low = -8.74227766e-8f;  // pi + pi_low has 48 bits of pi
  float r = (above ? pi / 4 : 0.0f) + (t + t * z * p);
  r = width < height ? pi / 2 - (r - pi_low / 2) : r;
  r = std::bit_cast<std::int32_t>(x) < 0 ? pi - (r - pi_low) : r;  // x may be -0
  r = std::copysign(r, y);
  return x != x || y != y ? x + y : r;
}

/// 1 / (1 + e^-x), computed with an exponential that cannot overflow.
template <class T>
inline T sigmoid(T x) {
  const T e = fast_exp(-std::abs(x));
  return (x >= 0 ? T(1) : e) / (1 + e);
}

/// Phi(x), the normal distribution function. It avoids differences of large numbers, so small values of Phi,
/// and with them the left tail of gelu, keep their digits.
inline double normal_cdf(double x) { return 0.5 * std::erfc(x * -(1 / std::numbers::sqrt2)); }
/// Computes erfc(z) = e^(-z^2) t q(t) with z = |x| / sqrt(2), t = 1 / (1 + z / 2) and a polynomial q.
inline float normal_cdf(float x) {
  const float z = std::abs(x) * static_cast<float>(1 / std::numbers::sqrt2);
  const float t = 1 / (1 + 0.5f * z);
  float q = 0.0404836805322f;
  q = q * t - 0.218649956716f;
  q = q * t + 0.452166498304f;
  q = q * t - 0.393745837447f;
  q = q * t + 0.075355517503f;
  q = q * t - 0.0247133040074f;
  q = q * t + 0.0796696481967f;
  q = q * t + 0.178877564992f;
  q = q * t + 0.246320224778f;
  q = q * t + 0.28214295598f;
  q = q * t + 0.282093012871f;
  const float tail = 0.5f * (fast_exp(-0.5f * x * x) * (t * q));
  return x < 0 ? tail : 1 - tail;
}

/// The elementary functions that formulas call (kernels/ops/pointwise.h).
struct Math {
  template <class C>
  static C exp(C x) {
    return fast_exp(x);
  }
  /// e^x for x <= 0. On the GPU this case has a faster function.
  template <class C>
  static C exp_of_negative(C x) {
    return fast_exp(x);
  }
  template <class C>
  static C log(C x) {
    return cpu::log(x);
  }
  /// log(1 + x) for x >= -1 (Goldberg 1991, theorem 4). The rounding error of 1 + x cancels in the quotient.
  template <class C>
  static C log1p(C x) {
    const C u = 1 + x;
    return u == 1 ? x : cpu::log(u) * (x / (u - 1));
  }
  /// The standard library's log(), for formulas that also call pow(). The call to pow() already prevents
  /// vectorisation.
  template <class C>
  static C exact_log(C x) {
    return std::log(x);
  }
  template <class C>
  static C sqrt(C x) {
    return std::sqrt(x);
  }
  template <class C>
  static C rsqrt(C x) {
    return 1 / std::sqrt(x);
  }
  template <class C>
  static C tanh(C x) {
    return cpu::tanh(x);
  }
  template <class C>
  static C sigmoid(C x) {
    return cpu::sigmoid(x);
  }
  template <class C>
  static C normal_cdf(C x) {
    return cpu::normal_cdf(x);
  }
  template <class C>
  static C atan2(C y, C x) {
    return cpu::atan2(y, x);
  }
  template <class C>
  static C pow(C x, C y) {
    return std::pow(x, y);
  }
  template <class C>
  static C abs(C x) {
    return std::abs(x);
  }
};

}  // namespace tapestry::kernels::cpu
