#pragma once
// Input values for kernels, and comparison of their results with a reference in f64.
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "tests/emulated/memory.h"

namespace emulated {

using Values = std::vector<double>;
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
/// The unit roundoff of f32.
inline constexpr double kUnit = 0x1p-24;

/// A linear congruential generator of reproducible 32-bit numbers. Its high bits are the most random.
class Random {
 public:
  explicit Random(unsigned salt) : state_(4321 + salt) {}
  std::uint32_t operator()() { return state_ = state_ * 1664525u + 1013904223u; }

 private:
  std::uint32_t state_;
};

/// Multiples of scale / 128 in [-scale, scale). They are exact in bf16 if scale is a power of 2.
inline Values numbers(std::int64_t n, unsigned salt, double scale) {
  Values v(static_cast<std::size_t>(n));
  Random random(salt);
  for (double& x : v) x = scale * (static_cast<double>(random() >> 24) - 128) / 128;
  return v;
}

inline Values magnitudes(Values v) {
  for (double& x : v) x = std::abs(x);
  return v;
}

/// The nearest values that T can represent.
template <class T>
Values rounded(Values v) {
  for (double& x : v) x = static_cast<double>(static_cast<float>(T(static_cast<float>(x))));
  return v;
}

/// A generous bound of the rounding error, in unit roundoffs, of a sum of n terms that kernels add partly one
/// after another and partly pairwise.
inline double roundings(std::int64_t n) { return 64 + 4 * std::log2(static_cast<double>(n) + 1); }

/// Checks that |got - want| is at most `error` unit roundoffs of f32, plus the rounding to T.
template <class T>
void check_close(const char* what, const Block<T>& got, const Values& want, const Values& error) {
  constexpr bool is_half = std::is_same_v<T, tapestry::Half>;
  constexpr double storing = std::is_same_v<T, float> ? 0 : is_half ? 0x1p-11 : 0x1p-8;
  constexpr double least = is_half ? 0x1p-25 : 0x1p-126;  // half of f16's smallest number
  CAPTURE(what);
  std::size_t bad = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double value = static_cast<double>(static_cast<float>(got[i]));
    const double tolerance = kUnit * error[i] + storing * std::abs(want[i]) + least;
    const bool fits =
        std::isnan(want[i]) ? std::isnan(value) : value == want[i] || std::abs(value - want[i]) <= tolerance;
    if (fits || ++bad > 3) continue;
    CAPTURE(i, value, want[i], tolerance);
    CHECK(fits);
  }
  CHECK(bad == 0);
}

}  // namespace emulated
