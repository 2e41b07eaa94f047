#pragma once
// Sums that a compiler vectorises without leave to reorder: kLanes partial sums side by side, added up at the
// end. Also more accurate than one running sum.
#include <cstdint>

namespace tapestry::kernels::cpu {

inline constexpr std::int64_t kLanes = 16;

/// Sum over i in [0, n) of f(i).
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
