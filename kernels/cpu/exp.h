#pragma once
// exp and functions that are computed from it, without branches or calls, so that loops over them are
// vectorised. The f64 versions of expm1, sinh and cosh call the standard library.
#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

namespace tapestry::kernels::cpu {

/// The constants of fast_exp(), exp2() and expm1().
template <class T>
struct ExpConstants {
  static constexpr bool f32 = std::is_same_v<T, float>;
  using Int = std::conditional_t<f32, std::int32_t, std::int64_t>;
  static constexpr int mantissa = f32 ? 23 : 52, bias = f32 ? 127 : 1023;
  // Adding `shift` to a number rounds the number to an integer. The low bits of the sum's mantissa are that
  // integer.
  static constexpr T shift = f32 ? T(0x1.8p23) : T(0x1.8p52);
  static constexpr T log2e = T(1.4426950408889634074);
  static constexpr T ln2_high = f32 ? T(0x1.62e4p-1) : T(0x1.62e42fefa38p-1);
  static constexpr T ln2_low = f32 ? T(0x1.7f7d1cf79abcap-20) : T(0x1.ef35793c7673p-45);
};

/// e^r for r in [-ln2/2, ln2/2]: in f64 the Taylor polynomial, in f32 the polynomial of degree 6 with the
/// smallest relative error (2e-9, by Remez's algorithm).
inline double exp_polynomial(double r) {
  double p = 1.0 / 6227020800.0;
  p = p * r + 1.0 / 479001600;
  p = p * r + 1.0 / 39916800;
  p = p * r + 1.0 / 3628800;
  p = p * r + 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  p = p * r + 1;
  return p * r + 1;
}
inline float exp_polynomial(float r) {
  float p = 0.00138368490113f;
  p = p * r + 0.00837482433512f;
  p = p * r + 0.0416682258985f;
  p = p * r + 0.16666420068f;
  p = p * r + 0.499999920769f;
  p = p * r + 1;
  return p * r + 1;
}

/// Returns factor 2^n e^r for r in [-ln2/2, ln2/2], where t = n + shift. The result is multiplied by 2^n as
/// two factors, so that neither factor overflows or underflows.
template <class T>
inline T scaled_exp(T r, T n, T t, T factor = 1) {
  using Constants = ExpConstants<T>;
  using Int = typename Constants::Int;
  constexpr int mantissa = Constants::mantissa, bias = Constants::bias;
  constexpr T shift = Constants::shift;
  const T p = exp_polynomial(r);
  const T h = n * T(0.5) + shift;
  const Int zero = std::bit_cast<Int>(shift);
  const Int all = std::bit_cast<Int>(t) - zero, half = std::bit_cast<Int>(h) - zero;
  using Bits = std::make_unsigned_t<Int>;
  const T first = std::bit_cast<T>(static_cast<Bits>(half + bias) << mantissa);
  const T second = std::bit_cast<T>(static_cast<Bits>(all - half + bias) << mantissa);
  return p * factor * first * second;
}

/// Returns factor e^x with an error of at most 2 ulp, also for subnormal results. `factor` is 1 or 1/2. NaN,
/// 0 and infinity appear for the same arguments as in std::exp. Method: x = n ln2 + r with r in [-ln2/2,
/// ln2/2], and e^x = 2^n e^r.
template <class T>
inline T fast_exp(T x, T factor = 1) {
  using Constants = ExpConstants<T>;
  constexpr bool f32 = Constants::f32;
  constexpr T low = f32 ? T(-104) : T(-746), high = f32 ? T(89.5) : T(710.5);
  x = x < low ? low : x;
  x = x > high ? high : x;
  const T t = x * Constants::log2e + Constants::shift;
  const T n = t - Constants::shift;
  return scaled_exp((x - n * Constants::ln2_high) - n * Constants::ln2_low, n, t, factor);
}

/// 2^64 e^x for x <= 40, with the error of fast_exp(). 2^(n + 64) is a normal number even if e^x is not, so
/// that one factor is enough.
inline float scaled_exp_of_negative(float x) {
  using Constants = ExpConstants<float>;
  x = x < -104 ? -104 : x;
  const float t = x * Constants::log2e + Constants::shift;
  const float n = t - Constants::shift;
  const float r = (x - n * Constants::ln2_high) - n * Constants::ln2_low;
  const std::int32_t exponent =
      std::bit_cast<std::int32_t>(t) - std::bit_cast<std::int32_t>(Constants::shift) + Constants::bias + 64;
  return exp_polynomial(r) * std::bit_cast<float>(static_cast<std::uint32_t>(exponent) << 23);
}
/// e^x for x <= 40: the same bits as fast_exp() in three quarters of its time.
inline float exp_of_negative(float x) { return scaled_exp_of_negative(x) * 0x1p-64f; }
inline double exp_of_negative(double x) { return fast_exp(x); }

/// 2^x. Writes x = n + r with r in [-1/2, 1/2].
template <class T>
inline T exp2(T x) {
  using Constants = ExpConstants<T>;
  constexpr bool f32 = Constants::f32;
  constexpr T low = f32 ? T(-151) : T(-1076), high = f32 ? T(129) : T(1025);
  x = x < low ? low : x;
  x = x > high ? high : x;
  const T t = x + Constants::shift;
  const T n = t - Constants::shift;
  return scaled_exp((x - n) * T(0.69314718055994530942), n, t);
}

inline double expm1(double x) { return std::expm1(x); }
/// e^x - 1. Writes x = n ln2 + r as fast_exp() does, and computes 2 (2^(n-1) (e^r - 1) + (2^(n-1) - 1/2)),
/// whose terms do not overflow before the result does.
inline float expm1(float x) {
  using Constants = ExpConstants<float>;
  float c = x < -20 ? -20 : x;  // e^-20 - 1 rounds to -1
  c = c > 89 ? 89 : c;          // e^89 is infinite
  const float t = c * Constants::log2e + Constants::shift;
  const float n = t - Constants::shift;
  const float r = (c - n * Constants::ln2_high) - n * Constants::ln2_low;
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  const float q = r + r * r * p;
  const std::int32_t exponent =
      std::bit_cast<std::int32_t>(t) - std::bit_cast<std::int32_t>(Constants::shift);
  const float power = std::bit_cast<float>(static_cast<std::uint32_t>(exponent + 126) << 23);  // 2^(n-1)
  const float y = 2 * (power * q + (power - 0.5f));
  return std::abs(x) < 0x1p-25f ? x : y;  // keeps -0 and subnormal numbers
}

inline double cosh(double x) { return std::cosh(x); }
/// cosh(x) = h + 1 / (4 h) with h = e^|x| / 2, which does not overflow before the result does.
inline float cosh(float x) {
  const float h = fast_exp(std::abs(x), 0.5f);
  return h + 0.25f / h;
}
inline double sinh(double x) { return std::sinh(x); }
/// sinh(x). For |x| < 1 it is a Taylor polynomial. Otherwise it is h - 1 / (4 h) with the sign of x, where h
/// = e^|x| / 2.
inline float sinh(float x) {
  const float z = x * x;
  float p = 1.0f / 362880;
  p = p * z + 1.0f / 5040;
  p = p * z + 1.0f / 120;
  p = p * z + 1.0f / 6;
  const float h = fast_exp(std::abs(x), 0.5f);
  return std::abs(x) < 1 ? x + x * (z * p) : std::copysign(h - 0.25f / h, x);
}

}  // namespace tapestry::kernels::cpu
