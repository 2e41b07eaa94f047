#include "tapestry/distributed/planner/internal/overlap.h"

#include <algorithm>

#include "tapestry/core/error.h"

namespace tapestry::distributed::planner {

Overlap overlap(std::span<const double> ready, std::span<const double> costs, double compute,
                const AllReduce& all_reduce) {
  check(ready.size() == costs.size(), "[overlap] ", ready.size(), " buckets with ", costs.size(),
        " costs; pass one cost per bucket");
  const double slowdown = all_reduce.overlap_slowdown, speed = 1 - all_reduce.compute_stall;
  check(speed >= 0 && speed <= 1 && slowdown >= 1, "[overlap] compute_stall is ", all_reduce.compute_stall,
        " and overlap_slowdown is ", slowdown, "; they must be from 0 to 1, and 1 or more");
  double now = 0, done = 0;  // the time on the clock and the work done by backward, both in seconds
  double queued = 0;         // remaining communication, in seconds that it would take alone
  const auto compute_until = [&](double target) {
    // `drain_s` is the time until all queued all-reduces have finished. Backward continues meanwhile, at the
    // speed `speed`.
    const double drain_s = queued * slowdown;
    if (done + drain_s * speed < target) {
      now += drain_s + target - (done + drain_s * speed);
      queued = 0;
    } else if (target > done) {
      now += (target - done) / speed;
      queued -= (target - done) / speed / slowdown;
    }
    done = std::max(done, target);
  };
  for (std::size_t i = 0; i < ready.size(); ++i) {
    compute_until(std::min(ready[i], compute));
    queued += costs[i];
  }
  compute_until(compute);
  return {now, queued};
}

}  // namespace tapestry::distributed::planner
