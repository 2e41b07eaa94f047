#pragma once
// Sums that the compiler can vectorise without permission to reorder additions. kLanes partial sums are
// accumulated at the same time and added at the end. This is also more accurate than a single running sum.
#include <cstdint>

namespace tapestry::kernels::cpu {

inline constexpr std::int64_t kLanes = 16;

/// Returns f(0) + ... + f(n - 1).
template <class C, class F>
inline C sum_lanes(std::int64_t n, F&& f) {
  C lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (std::int64_t j = 0; j < kLanes; ++j) lanes[j] += f(i + j);
  C total = 0;
  for (; i < n; ++i) total += f(i);
  for (std::int64_t width = kLanes / 2; width > 0; width /= 2)
    for (std::int64_t j = 0; j < width; ++j) lanes[j] += lanes[j + width];
  return total + lanes[0];
}

}  // namespace tapestry::kernels::cpu
