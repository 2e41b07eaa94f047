#pragma once
// Converts the words that Philox generates to random numbers. Host and device code share these functions, so
// both give the same bits, except that normal numbers may differ in the last digits.
#include <cmath>
#include <numbers>
#include <type_traits>

#include "tapestry/core/half.h"
#include "tapestry/core/philox.h"

namespace tapestry::kernels {

/// The 64-bit number with words[2i] as its upper half and words[2i + 1] as its lower half.
TAPESTRY_HOST_DEVICE inline std::uint64_t wide_word(const std::uint32_t* words, int i) {
  return static_cast<std::uint64_t>(words[2 * i]) << 32 | words[2 * i + 1];
}

/// Returns a uniform number in [0, 1). It has as many random bits as T's mantissa holds, so that no value
/// rounds up to 1. T is float, Half or BFloat16.
template <class T>
TAPESTRY_HOST_DEVICE inline double uniform_from(std::uint32_t word) {
  constexpr int bits = std::is_same_v<T, Half> ? 11 : std::is_same_v<T, BFloat16> ? 8 : 24;
  return static_cast<std::int32_t>(word >> (32 - bits)) * (1.0 / (1 << bits));
}

struct NormalPair {
  double first, second;
};
/// Converts two uniform numbers, u in (0, 1] and v in [0, 1), to two independent normal numbers (Box and
/// Muller 1958). The angle 2 pi v is split exactly into quarter turns and a remainder. So sine and cosine are
/// accurate also near their zeros, and devices differ at most in the last digits.
TAPESTRY_HOST_DEVICE inline NormalPair normal_from(double u, double v) {
  const double r = ::sqrt(-2 * ::log(u));  // `::` because tapestry::kernels::log is a slot
  const auto quarters = static_cast<int>(4 * v + 0.5);
  const double rest = v - 0.25 * quarters;  // in turns; its absolute value is at most 1/8
#ifdef __CUDA_ARCH__
  double s, c;
  sincospi(2 * rest, &s, &c);
#else
  const double angle = 2 * std::numbers::pi * rest, s = std::sin(angle), c = std::cos(angle);
#endif
  const bool odd = quarters & 1;
  const double x = odd ? s : c, y = odd ? c : s;
  return {r * (quarters == 1 || quarters == 2 ? -x : x), r * (quarters == 2 || quarters == 3 ? -y : y)};
}
/// Converts two random words. For dtypes that are computed in f32.
TAPESTRY_HOST_DEVICE inline NormalPair normal_from(std::uint32_t w, std::uint32_t x) {
  return normal_from((w + 1.0) * 0x1p-32, x * 0x1p-32);
}

/// Converts the 64-bit random number `wide` to a uniform integer in [low, low + span).
TAPESTRY_HOST_DEVICE inline std::int64_t integer_from(std::uint64_t wide, std::int64_t low,
                                                      std::uint64_t span) {
  const auto step = static_cast<std::uint64_t>(static_cast<unsigned __int128>(wide) * span >> 64);
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(low) + step);
}

}  // namespace tapestry::kernels
