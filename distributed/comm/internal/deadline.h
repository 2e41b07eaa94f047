#pragma once
// Conversions between timeouts and deadlines.
#include <algorithm>
#include <chrono>

#include "tapestry/distributed/comm/store.h"

namespace tapestry::distributed {

/// Longer timeouts count as one year, because the clock plus Milliseconds::max() would overflow.
constexpr Milliseconds kLongestTimeout = std::chrono::hours(24 * 365);

/// The time now plus `timeout`, which may be negative (counts as 0) or Milliseconds::max().
inline Deadline deadline_after(Milliseconds timeout) {
  return Clock::now() + std::clamp(timeout, Milliseconds(0), kLongestTimeout);
}

/// The time from now until the deadline; never negative.
inline Milliseconds left_until(Deadline deadline) {
  return std::max(std::chrono::ceil<Milliseconds>(deadline - Clock::now()), Milliseconds(0));
}

/// The time from now until the deadline in milliseconds, as poll() and epoll_wait() take it; at most a day.
inline int poll_timeout(Deadline deadline) {
  return static_cast<int>(std::min<Milliseconds>(left_until(deadline), std::chrono::hours(24)).count());
}

}  // namespace tapestry::distributed
