#pragma once
// Formats of floating-point numbers and their rounding.
#include <bit>
#include <cmath>
#include <cstdint>

namespace tapestry::ptx {

enum Rounding : std::uint32_t { kNearestEven, kToZero, kDown, kUp };

struct Format {
  int exponent_bits, mantissa_bits;
};
constexpr Format kHalf{5, 10}, kBrain{8, 7}, kSingle{8, 23};

/// Rounds a number to a narrower format. NaN becomes the canonical NaN, in which all bits but the sign are
/// set (0x7fffffff).
inline std::uint32_t narrow(double x, Format f, Rounding rounding) {
  const auto bits = std::bit_cast<std::uint64_t>(x);
  const auto sign = static_cast<std::uint32_t>(bits >> 63) << (f.exponent_bits + f.mantissa_bits);
  const std::uint32_t infinity = ((1u << f.exponent_bits) - 1) << f.mantissa_bits;
  if (std::isnan(x)) return infinity | ((1u << f.mantissa_bits) - 1);
  if (std::isinf(x)) return sign | infinity;
  if (x == 0) return sign;
  if (const int power = static_cast<int>((bits >> 52) & 0x7ff) - 1023 + (1 << (f.exponent_bits - 1)) - 1;
      rounding == kNearestEven && power > 0 && power < (1 << f.exponent_bits) - 1) {
    // A normal number in both formats, the usual case. A carry increments the exponent, up to infinity.
    const int lost_bits = 52 - f.mantissa_bits;
    const std::uint64_t m = bits & 0xfffffffffffffu, odd = (m >> lost_bits) & 1;
    const std::uint64_t rounded = (m + (std::uint64_t{1} << (lost_bits - 1)) - 1 + odd) >> lost_bits;
    return sign | static_cast<std::uint32_t>((static_cast<std::uint64_t>(power) << f.mantissa_bits) + rounded);
  }
  int exponent = 0;
  const double fraction = std::frexp(std::fabs(x), &exponent);  // in [1/2, 1)
  const auto m = static_cast<std::uint64_t>(std::ldexp(fraction, 53));
  --exponent;
  const int bias = (1 << (f.exponent_bits - 1)) - 1, smallest = 1 - bias;
  int shift = 52 - f.mantissa_bits;
  if (exponent < smallest) shift += smallest - exponent;
  if (shift > 60) shift = 60;  // all of it is lost, but not zero
  std::uint64_t kept = m >> shift;
  const std::uint64_t lost = m & ((std::uint64_t{1} << shift) - 1), half = std::uint64_t{1} << (shift - 1);
  const bool away = rounding == kUp ? sign == 0 : sign != 0;
  if (rounding == kNearestEven ? lost > half || (lost == half && (kept & 1) != 0)
                               : rounding != kToZero && away && lost != 0)
    ++kept;
  // A carry out of the mantissa increments the exponent, as it should.
  const std::uint64_t biased = exponent < smallest ? 0 : static_cast<std::uint64_t>(exponent - smallest);
  const std::uint64_t result = (biased << f.mantissa_bits) + kept;
  if (result >= infinity)
    return sign | (rounding == kNearestEven || (rounding != kToZero && away) ? infinity : infinity - 1);
  return sign | static_cast<std::uint32_t>(result);
}
/// The number that the bits mean. Exact for all three formats.
inline double widen(std::uint32_t bits, Format f) {
  const bool negative = ((bits >> (f.exponent_bits + f.mantissa_bits)) & 1) != 0;
  const int exponent = static_cast<int>((bits >> f.mantissa_bits) & ((1u << f.exponent_bits) - 1));
  const std::uint32_t mantissa = bits & ((1u << f.mantissa_bits) - 1);
  const int bias = (1 << (f.exponent_bits - 1)) - 1;
  if (exponent != 0 && exponent != (1 << f.exponent_bits) - 1)
    return std::bit_cast<double>(std::uint64_t{negative} << 63 |
                                 static_cast<std::uint64_t>(exponent - bias + 1023) << 52 |
                                 std::uint64_t{mantissa} << (52 - f.mantissa_bits));
  double x;
  if (exponent == (1 << f.exponent_bits) - 1) x = mantissa != 0 ? std::nan("") : HUGE_VAL;
  else x = std::ldexp(static_cast<double>(mantissa), 1 - bias - f.mantissa_bits);
  return negative ? -x : x;
}

/// e4m3 has no infinities: with all exponent bits set, only the mantissa 7 is NaN.
inline double widen_e4m3(std::uint32_t bits) {
  if ((bits & 0x7f) == 0x7f) return std::nan("");
  if ((bits & 0x78) != 0x78) return widen(bits, Format{4, 3});
  const double magnitude = 256 + 32 * static_cast<double>(bits & 7);
  return (bits & 0x80) != 0 ? -magnitude : magnitude;
}

constexpr std::uint32_t kCanonicalNan = 0x7fffffffu;
inline float canonical(float x) { return x == x ? x : std::bit_cast<float>(kCanonicalNan); }
inline double canonical(double x) { return x; }
inline float flush(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return (bits & 0x7f800000u) == 0 ? std::bit_cast<float>(bits & 0x80000000u) : x;
}
inline double flush(double x) { return x; }
inline float saturate(float x) { return x > 0 ? (x < 1 ? x : 1.0f) : 0.0f; }  // NaN becomes +0
inline double saturate(double x) { return x > 0 ? (x < 1 ? x : 1.0) : 0.0; }

}  // namespace tapestry::ptx
