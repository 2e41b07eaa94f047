#pragma once
// Timeouts as points in time, and back.
#include <algorithm>
#include <chrono>

#include "tapestry/distributed/comm/store.h"

namespace tapestry::distributed {

/// A year stands for whatever is longer: Milliseconds::max(), added to the clock, would run over.
constexpr Milliseconds kLongestTimeout = std::chrono::hours(24 * 365);

/// Now plus `timeout`, which may be negative or the greatest there is.
inline Deadline deadline_after(Milliseconds timeout) {
  return Clock::now() + std::clamp(timeout, Milliseconds(0), kLongestTimeout);
}

/// From now until then; never negative.
inline Milliseconds left_until(Deadline deadline) {
  return std::max(std::chrono::ceil<Milliseconds>(deadline - Clock::now()), Milliseconds(0));
}

}  // namespace tapestry::distributed
