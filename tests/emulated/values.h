#pragma once
// Inputs of kernels that are exact in every type, and the comparison of results with those in f64.
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "tests/emulated/memory.h"

namespace emulated {

using Values = std::vector<double>;
/// Of f32's rounding.
inline constexpr double kUnit = 0x1p-24;

/// Reproducible numbers in [-scale, scale), exact in bf16 for a power of 2.
inline Values numbers(std::int64_t n, unsigned salt, double scale) {
  Values v(static_cast<std::size_t>(n));
  std::uint32_t state = 4321 + salt;
  for (double& x : v) {
    state = state * 1664525u + 1013904223u;
    x = scale * (static_cast<double>(state >> 24) - 128) / 128;
  }
  return v;
}

/// Roundings of a sum of n terms, generously: some in turn, the rest by halves.
inline double roundings(std::int64_t n) { return 64 + 4 * std::log2(static_cast<double>(n) + 1); }

/// |got - want| may be `error` units of f32's rounding, and the rounding to T.
template <class T>
void check_close(const char* what, const Block<T>& got, const Values& want, const Values& error) {
  constexpr double storing = std::is_same_v<T, float> ? 0 : 0x1p-8;
  CAPTURE(what);
  std::size_t bad = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double value = static_cast<double>(static_cast<float>(got[i]));
    const double tolerance = kUnit * error[i] + storing * std::abs(want[i]) + 0x1p-126;
    const bool fits =
        std::isnan(want[i]) ? std::isnan(value) : value == want[i] || std::abs(value - want[i]) <= tolerance;
    if (fits || ++bad > 3) continue;
    CAPTURE(i, value, want[i], tolerance);
    CHECK(fits);
  }
  CHECK(bad == 0);
}

}  // namespace emulated
