#include "tapestry/distributed/planner/internal/overlap.h"

#include "tapestry/core/error.h"

namespace tapestry::distributed::planner {

StepQueues overlap(std::span<const double> ready, std::span<const double> costs, double compute,
                   std::span<const AllReduce* const> interference, std::span<const std::size_t> queues) {
  check(ready.size() == costs.size(), "[overlap] ", ready.size(), " buckets with ", costs.size(),
        " costs; pass one cost per bucket");
  std::vector<ComputePhase> phases;
  std::vector<Collective> all_reduces;
  double done = 0;
  for (std::size_t i = 0; i < ready.size(); ++i) {
    check(ready[i] >= done && ready[i] <= compute, "[overlap] bucket ", i, " is complete after ", ready[i],
          " s, the one before it after ", done, " s, and backward ends after ", compute,
          " s; pass times that do not decrease and are in the pass");
    phases.push_back({ready[i] - done});
    all_reduces.push_back({.seconds = costs[i], .after = static_cast<int>(i), .queue = queues[i]});
    done = ready[i];
  }
  phases.push_back({compute - done});
  return simulate(phases, all_reduces, interference);
}

StepQueues overlap(std::span<const double> ready, std::span<const double> costs, double compute,
                   const AllReduce& all_reduce) {
  const AllReduce* const one = &all_reduce;
  return overlap(ready, costs, compute, {&one, 1}, std::vector<std::size_t>(ready.size()));
}

}  // namespace tapestry::distributed::planner
