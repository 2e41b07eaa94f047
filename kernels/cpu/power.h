#pragma once
// pow in f32, without branches or calls, so that loops over it are vectorised.
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>

namespace tapestry::kernels::cpu {

inline double pow(double x, double y) { return std::pow(x, y); }
/// x^y with an error of at most 0.6 ulp, and the special cases of std::pow. It is 2^(y log2|x|), computed in
/// f64, where y log2|x| has an absolute error below 2^-31 as long as the result is finite.
///   log2: |x| = 2^e (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)), and with s = f / (2 + f), log(1 + f) =
///   2 atanh(s), a Taylor polynomial with a relative error of s^14 / 15 <= 2^-39.
///   2^t: t = n + r with r in [-1/2, 1/2]; the Taylor polynomial of 2^r has an error of 5e-9.
inline float pow(float x, float y) {
  const double size = std::abs(static_cast<double>(x));
  // AVX2 has neither arithmetic shifts nor conversions of 64-bit integers, so the exponent is kept positive
  // by its bias, and becomes an f64 as the low bits of 2^52 + e.
  constexpr std::uint64_t root = 0x3fe6a09e667f3bcdu, bias = std::uint64_t{1023} << 52;  // sqrt(1/2)
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(size), e = (bits - root + bias) >> 52;
  const double f = std::bit_cast<double>(bits - (e << 52) + bias) - 1;
  const double exponent = std::bit_cast<double>(e | std::bit_cast<std::uint64_t>(0x1p52)) - (0x1p52 + 1023);
  constexpr double scale = 2 * std::numbers::log2e;
  const double s = f / (2 + f), z = s * s;
  double q = scale / 13;
  q = q * z + scale / 11;
  q = q * z + scale / 9;
  q = q * z + scale / 7;
  q = q * z + scale / 5;
  q = q * z + scale / 3;
  q = q * z + scale;
  constexpr double infinity = std::numeric_limits<double>::infinity();
  double log2 = exponent + s * q;
  log2 = size == 0 ? -infinity : log2;
  log2 = size < infinity ? log2 : size;  // infinity or NaN

  double t = static_cast<double>(y) * log2;
  t = t < -200 ? -200 : t;
  t = t > 200 ? 200 : t;
  const double shifted = t + 0x1.8p52, r = t - (shifted - 0x1.8p52);
  constexpr double ln2 = std::numbers::ln2;
  double p = ln2 * ln2 * ln2 * ln2 * ln2 * ln2 * ln2 / 5040;
  p = p * r + ln2 * ln2 * ln2 * ln2 * ln2 * ln2 / 720;
  p = p * r + ln2 * ln2 * ln2 * ln2 * ln2 / 120;
  p = p * r + ln2 * ln2 * ln2 * ln2 / 24;
  p = p * r + ln2 * ln2 * ln2 / 6;
  p = p * r + ln2 * ln2 / 2;
  p = p * r + ln2;
  p = p * r + 1;
  const double power = std::bit_cast<double>((std::bit_cast<std::uint64_t>(shifted) << 52) + bias);

  // The sign, and the cases that IEEE 754 defines. All are compared in f32, because g++ does not vectorise
  // conditions of two widths.
  const float near = std::abs(x), half = 0.5f * y;
  const bool whole = std::nearbyint(y) == y, even = std::nearbyint(half) == half;
  const float positive = near == 1 && y == y ? 1 : static_cast<float>(p * power);
  const bool undefined = near > 0 && near < std::numeric_limits<float>::infinity();
  const float negative = whole       ? (even ? positive : -positive)
                         : undefined ? std::numeric_limits<float>::quiet_NaN()
                                     : positive;
  const float result = std::bit_cast<std::int32_t>(x) < 0 ? negative : positive;  // x may be -0
  return y == 0 || x == 1 ? 1 : result;
}

}  // namespace tapestry::kernels::cpu
