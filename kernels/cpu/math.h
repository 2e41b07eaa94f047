#pragma once
// Elementary functions for the formulas of CPU kernels. The f32 versions are written here, in exp.h and in
// trigonometry.h without branches or calls, so that loops over them are vectorised.
// They are accurate to a few units in the last place, and give NaN, infinities and denormals where the
// standard library does. Unless a comment names another source, their coefficients minimise the largest
// relative error (Remez's algorithm). Unless a comment says otherwise, the f64 versions call the standard
// library.
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>

#include "tapestry/kernels/cpu/exp.h"
#include "tapestry/kernels/cpu/power.h"
#include "tapestry/kernels/cpu/trigonometry.h"

namespace tapestry::kernels::cpu {

/// x = 2^n (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)). As in Sun's fdlibm, log(1 + f) is f - (half_square -
/// rest), where only small terms are rounded: with s = f / (2 + f), log(1 + f) = 2 atanh(s).
struct LogTerms {
  float n, f, half_square, rest;
};
inline LogTerms log_terms(float x) {
  const bool denormal = x < std::numeric_limits<float>::min();
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(denormal ? x * 0x1p25f : x);
  const std::int32_t e = static_cast<std::int32_t>(bits - 0x3f3504f3u) >> 23;  // sqrt(1/2) is 0x3f3504f3
  const float f = std::bit_cast<float>(bits - (static_cast<std::uint32_t>(e) << 23)) - 1;
  const float n = static_cast<float>(denormal ? e - 25 : e);
  const float s = f / (2 + f), z = s * s, half_square = 0.5f * f * f;
  const float r = z * (0.666666665541f + z * (0.400001220951f + z * (0.285507976338f + z * 0.233309930331f)));
  return {n, f, half_square, s * (half_square + r)};
}
/// Returns `y`, or the logarithm of x if x is 0, negative, infinite or NaN.
inline float log_or_special(float x, float y) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  y = x == infinity || x != x ? x : y;
  y = x == 0 ? -infinity : y;
  return x < 0 ? std::numeric_limits<float>::quiet_NaN() : y;
}

inline double log(double x) { return std::log(x); }
/// Computes n ln2 + log(1 + f).
inline float log_from(const LogTerms& t) {
  constexpr float ln2_high = 0x1.62e3p-1f, ln2_low = 9.05800135156e-06f;
  return t.n * ln2_high - ((t.half_square - (t.rest + t.n * ln2_low)) - t.f);
}
inline float log(float x) { return log_or_special(x, log_from(log_terms(x))); }
inline double log2(double x) { return std::log2(x); }
inline float log2(float x) {
  const LogTerms t = log_terms(x);
  return log_or_special(x, t.n + (t.f - (t.half_square - t.rest)) * std::numbers::log2e_v<float>);
}
inline double log10(double x) { return std::log10(x); }
inline float log10(float x) {
  const LogTerms t = log_terms(x);
  constexpr float log10_2_high = 0x1.344p-2f, log10_2_low = 4.605038981195214e-06f;  // log10(2)
  const float m = (t.f - (t.half_square - t.rest)) * std::numbers::log10e_v<float>;
  return log_or_special(x, t.n * log10_2_high + (t.n * log10_2_low + m));
}
/// log(1 + x) (Goldberg 1991, theorem 4). The rounding error of 1 + x cancels in the quotient.
template <class T>
inline T log1p(T x) {
  const T u = 1 + x;
  return u == 1 || u == std::numeric_limits<T>::infinity() ? x : cpu::log(u) * (x / (u - 1));
}

/// log(1 + x) for 0 <= x <= 1. u = 1 + x is in [1, 2], and (x - (u - 1)) / u replaces what its rounding loses
/// (as in Sun's fdlibm). Without special cases of log1p(), g++ vectorises log1p(exp(...)) too.
inline double log1p_of_unit(double x) { return log1p(x); }
inline float log1p_of_unit(float x) {
  const float u = 1 + x;
  const LogTerms t = log_terms(u);
  return log_from(t) + (x - (u - 1)) / u;
}

inline double asinh(double x) { return std::asinh(x); }
/// The inverses of sinh, cosh and tanh by log1p. Above 2^13, sqrt(x^2 + 1) is x within the rounding error,
/// and asinh(x) = log(x) + ln2.
inline float asinh(float x) {
  const float a = std::abs(x);
  const bool large = a > 0x1p13f;
  const float u = large ? a - 1 : a + a * a / (1 + std::sqrt(1 + a * a));
  return std::copysign(log1p(u) + (large ? std::numbers::ln2_v<float> : 0.0f), x);
}
inline double acosh(double x) { return std::acosh(x); }
inline float acosh(float x) {
  const float t = x - 1;
  const bool large = x > 0x1p13f;
  const float y = log1p(large ? t : t + std::sqrt(t * (t + 2))) + (large ? std::numbers::ln2_v<float> : 0.0f);
  return x < 1 ? std::numeric_limits<float>::quiet_NaN() : y;
}
inline double atanh(double x) { return std::atanh(x); }
inline float atanh(float x) {
  const float a = std::abs(x);
  return std::copysign(0.5f * log1p(2 * a / (1 - a)), x);
}

inline double tanh(double x) { return std::tanh(x); }
/// tanh(x) = tanh(|x|) with the sign of x, which -0 keeps. Near 0 it is an odd polynomial. Elsewhere it is
/// 1 - 2 / (e^2|x| + 1).
inline float tanh(float x) {
  const float z = x * x;
  const float p =
      -0.333333289485f +
      z * (0.133327700853f + z * (-0.0538509536639f + z * (0.0209973583309f - z * 0.00609694255729f)));
  const float a = std::abs(x);
  return std::copysign(a < 0.625f ? a + a * z * p : 1 - 2 / (fast_exp(2 * a) + 1), x);
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
  const T e = exp_of_negative(-std::abs(x));
  return (x >= 0 ? T(1) : e) / (1 + e);
}

/// Returns erfc(z) for z >= 0, where e = e^(-z^2). Computes e t q(t) with t = 1 / (1 + z / 2) and a
/// polynomial q.
inline float erfc_of_positive(float z, float e) {
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
  return e * (t * q);
}

/// Phi(x), the normal distribution function. It avoids differences of large numbers, so small values of Phi,
/// and with them the left tail of gelu, keep their digits.
inline double normal_cdf(double x) { return 0.5 * std::erfc(x * -(1 / std::numbers::sqrt2)); }
/// Computes Phi(-|x|) = erfc(z) / 2 with z = |x| / sqrt(2), as e^(-x^2 / 2) t q(t) with t = 1 / (1 + 0.3 z)
/// and a polynomial q. For z > 10.1, where q was not fitted, the exponential is 0. The coefficients are
/// divided by 2^65, which halves erfc and undoes the scale of the exponential.
inline float normal_cdf(float x) {
  constexpr float scale = 0x1p-65f;
  const float t = 1 / (1 + std::abs(x) * static_cast<float>(0.3 / std::numbers::sqrt2));
  float q = scale * -0.129532651725f;
  q = q * t + scale * 0.485614467627f;
  q = q * t - scale * 0.5123936486f;
  q = q * t + scale * 0.547865693065f;
  q = q * t - scale * 0.0947628335933f;
  q = q * t + scale * 0.214979917824f;
  q = q * t + scale * 0.148323421615f;
  q = q * t + scale * 0.17071778556f;
  q = q * t + scale * 0.169187828627f;
  const float tail = scaled_exp_of_negative(-0.5f * (x * x)) * (t * q);
  return x < 0 ? tail : 1 - tail;
}

inline double erf(double x) { return std::erf(x); }
/// erf(x). For |x| < 3/4 it is a Taylor polynomial. Otherwise it is 1 - erfc(|x|) with the sign of x.
inline float erf(float x) {
  const float a = std::abs(x), z = x * x;
  float p = -1.49256503584062e-5f;  // 2 / sqrt(pi) (-1)^k / (k! (2 k + 1)) for k = 7, 6, ..., 0
  p = p * z + 1.20553329817664e-4f;
  p = p * z - 8.54832702345086e-4f;
  p = p * z + 5.22397762544219e-3f;
  p = p * z - 2.68661706451313e-2f;
  p = p * z + 1.12837916709551e-1f;
  p = p * z - 3.76126389031838e-1f;
  // The factor is 1 + 0.12837916709551. The last product is added to x, so that only the sum is rounded.
  p = x * (p * z + 1.28379167095513e-1f) + x;
  const float large = std::copysign(1 - erfc_of_positive(a, exp_of_negative(-z)), x);
  return a < 0.75f ? p : large;
}

inline double erfc(double x) { return std::erfc(x); }
/// The rounding error of x^2 would become a relative error of x^2 / 2 units in e^(-x^2). e^-z (1 - (x^2 - z))
/// with z = x^2 rounded has no such error. The difference is exact in f64.
inline float erfc(float x) {
  const float z = x * x, e = exp_of_negative(-z);
  const float rest =
      static_cast<float>(static_cast<double>(x) * static_cast<double>(x) - static_cast<double>(z));
  const float tail = erfc_of_positive(std::abs(x), std::abs(x) < 16 ? e - e * rest : 0.0f);
  return x < 0 ? 2 - tail : x == x ? tail : x;
}

/// The standard library's lgamma() writes a global variable, so that threads may not share it.
inline double lgamma(double x) {
  int sign;
  return ::lgamma_r(x, &sign);
}
inline float lgamma(float x) {
  int sign;
  return ::lgammaf_r(x, &sign);
}

/// The inverse of erf. Begins with Winitzki's formula, whose error is 0.2%, and takes three steps of Halley's
/// method, each of which triples the number of correct digits. For |x| >= 1/2, erfc replaces erf, so that 1 -
/// |x| keeps its digits.
inline double erfinv(double x) {
  const double a = std::abs(x);
  if (!(a < 1))
    return x == x && a == 1 ? std::copysign(std::numeric_limits<double>::infinity(), x)
                            : std::numeric_limits<double>::quiet_NaN();
  constexpr double c = 0.147;
  const double l = std::log1p(-a * a), m = 2 / (std::numbers::pi * c) + l / 2;
  double y = std::sqrt(std::sqrt(m * m - l / c) - m);
  for (int step = 0; step < 3; ++step) {
    const double difference = a < 0.5 ? std::erf(y) - a : (1 - a) - std::erfc(y);
    const double u = difference / (2 * std::numbers::inv_sqrtpi * std::exp(-y * y));
    y -= u / (1 + y * u);
  }
  return x == 0 ? x : std::copysign(y, x);
}

/// The elementary functions that formulas call (kernels/ops/pointwise.h).
struct Math {
  template <class C>
  static C exp(C x) {
    return fast_exp(x);
  }
  /// e^x for x <= 0, for which there is a faster function.
  template <class C>
  static C exp_of_negative(C x) {
    return cpu::exp_of_negative(x);
  }
  template <class C>
  static C log(C x) {
    return cpu::log(x);
  }
  template <class C>
  static C log1p(C x) {
    return cpu::log1p(x);
  }
  /// log(1 + x) for x between 0 and 1, such as an exponential of a negative number.
  template <class C>
  static C log1p_of_unit(C x) {
    return cpu::log1p_of_unit(x);
  }
  /// log() for formulas that also call pow().
  template <class C>
  static C exact_log(C x) {
    return cpu::log(x);
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
    return cpu::pow(x, y);
  }
  template <class C>
  static C abs(C x) {
    return std::abs(x);
  }
  template <class C>
  static C exp2(C x) {
    return cpu::exp2(x);
  }
  template <class C>
  static C expm1(C x) {
    return cpu::expm1(x);
  }
  template <class C>
  static C log2(C x) {
    return cpu::log2(x);
  }
  template <class C>
  static C log10(C x) {
    return cpu::log10(x);
  }
  template <class C>
  static C sin(C x) {
    return cpu::sin(x);
  }
  template <class C>
  static C cos(C x) {
    return cpu::cos(x);
  }
  template <class C>
  static C tan(C x) {
    return cpu::tan(x);
  }
  template <class C>
  static C sinh(C x) {
    return cpu::sinh(x);
  }
  template <class C>
  static C cosh(C x) {
    return cpu::cosh(x);
  }
  template <class C>
  static C asinh(C x) {
    return cpu::asinh(x);
  }
  template <class C>
  static C acosh(C x) {
    return cpu::acosh(x);
  }
  template <class C>
  static C atanh(C x) {
    return cpu::atanh(x);
  }
  template <class C>
  static C erf(C x) {
    return cpu::erf(x);
  }
  template <class C>
  static C erfc(C x) {
    return cpu::erfc(x);
  }
  template <class C>
  static C lgamma(C x) {
    return cpu::lgamma(x);
  }
  static double erfinv(double x) { return cpu::erfinv(x); }
  // asin, acos and atan are angles of points. (1 - x) (1 + x) has a smaller error than 1 - x^2.
  template <class C>
  static C asin(C x) {
    return cpu::atan2(x, std::sqrt((1 - x) * (1 + x)));
  }
  template <class C>
  static C acos(C x) {
    return cpu::atan2(std::sqrt((1 - x) * (1 + x)), x);
  }
  template <class C>
  static C atan(C x) {
    return cpu::atan2(x, C(1));
  }
  template <class C>
  static C floor(C x) {
    return std::floor(x);
  }
  template <class C>
  static C ceil(C x) {
    return std::ceil(x);
  }
  template <class C>
  static C trunc(C x) {
    return std::trunc(x);
  }
  /// The nearest integer, and the even one of two.
  template <class C>
  static C round_to_even(C x) {
    return std::nearbyint(x);
  }
  static double fmod(double x, double y) { return std::fmod(x, y); }
  /// Holds if |x| <= 2^26 |y| and both are finite. Then the difference in f64 is exact.
  static float fmod(float x, float y) {
    const double a = static_cast<double>(x), b = static_cast<double>(y);
    return std::copysign(static_cast<float>(a - std::trunc(a / b) * b), x);
  }
  /// 1, -1, or 0, also for NaN.
  template <class C>
  static C sign(C x) {
    return x > 0 ? C(1) : x < 0 ? C(-1) : C(0);
  }
  template <class C>
  static C copysign(C x, C sign) {
    return std::copysign(x, sign);
  }
};

}  // namespace tapestry::kernels::cpu
