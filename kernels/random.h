#pragma once
// What random numbers are made of Philox's words, for host and device code: the same bits on both.
#include <cmath>
#include <numbers>
#include <type_traits>

#include "tapestry/core/half.h"
#include "tapestry/core/philox.h"

namespace tapestry::kernels {

/// The 64-bit number of words 2i and 2i + 1, the first in the upper half.
TAPESTRY_HOST_DEVICE inline std::uint64_t wide_word(const std::uint32_t* words, int i) {
  return static_cast<std::uint64_t>(words[2 * i]) << 32 | words[2 * i + 1];
}

/// Uniform in [0, 1), with as many bits as T's mantissa holds, so that no value rounds up to 1. Not for f64.
template <class T>
TAPESTRY_HOST_DEVICE inline double uniform_from(std::uint32_t word) {
  constexpr int bits = std::is_same_v<T, Half> ? 11 : std::is_same_v<T, BFloat16> ? 8 : 24;
  return static_cast<std::int32_t>(word >> (32 - bits)) * (1.0 / (1 << bits));
}

struct NormalPair {
  double first, second;
};
/// Two independent normal numbers from two uniform ones, u in (0, 1] and v in [0, 1), by Box and Muller. The
/// angle is taken apart into quarter turns and a rest, exactly: so its sine and cosine are accurate, and the
/// same on every device but for their last digits, near their zeros too.
TAPESTRY_HOST_DEVICE inline NormalPair normal_from(double u, double v) {
  const double r = ::sqrt(-2 * ::log(u));  // log is a slot, too
  const auto quarters = static_cast<int>(4 * v + 0.5);
  const double rest = v - 0.25 * quarters;  // of a turn, at most an eighth
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
/// Of words w and x, for what is computed in f32.
TAPESTRY_HOST_DEVICE inline NormalPair normal_from(std::uint32_t w, std::uint32_t x) {
  return normal_from((w + 1.0) * 0x1p-32, x * 0x1p-32);
}

/// Uniform in [low, low + span).
TAPESTRY_HOST_DEVICE inline std::int64_t integer_from(std::uint64_t wide, std::int64_t low,
                                                      std::uint64_t span) {
  const auto step = static_cast<std::uint64_t>(static_cast<unsigned __int128>(wide) * span >> 64);
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(low) + step);
}

}  // namespace tapestry::kernels
