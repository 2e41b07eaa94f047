#pragma once
// A device that computes one phase after another while collectives run beside it. The collectives of one
// axis run one after another; those of different axes have groups of their own, and run at the same time.
#include <cstddef>
#include <span>
#include <vector>

#include "tapestry/distributed/planner/profile.h"

namespace tapestry::distributed::planner {

/// A phase takes `seconds` alone. It begins when the phase before has ended and the collective with the
/// number `needs` has ended; -1: it needs none.
struct ComputePhase {
  double seconds = 0;
  int needs = -1;
};

/// A collective takes `seconds` alone. It begins when the collective before it in its queue has ended, the
/// phase with the number `after` has begun (`at_begin`) or ended, and the collective with the number
/// `follows` has ended; -1: it waits for none.
struct Collective {
  double seconds = 0;
  int after = -1;
  bool at_begin = false;
  std::size_t queue = 0;
  int follows = -1;
};

struct StepQueues {
  std::vector<double> computing_s;  ///< per phase, including delays caused by collectives
  std::vector<double> waiting_s;    ///< per phase, before it begins
  double tail_s = 0;                ///< collectives after the last phase
  std::vector<double> phase_ended_s, collective_began_s, collective_ended_s;  ///< on the clock
  /// By queue: the part of waiting_s and tail_s that is spent on its collectives. If several queues are busy
  /// after the last phase, the last of them counts.
  std::vector<double> exposed_s;
};

/// Simulates the phases and as many queues as there are elements of `interference`. While a phase runs, the
/// collectives of a queue take its overlap_slowdown times as long, and each busy queue takes its
/// compute_stall of the phase's speed. Throws ValueError if a number is out of range, or if a phase and a
/// collective wait for each other.
StepQueues simulate(std::span<const ComputePhase> phases, std::span<const Collective> collectives,
                    std::span<const AllReduce* const> interference);
/// With one queue.
StepQueues simulate(std::span<const ComputePhase> phases, std::span<const Collective> collectives,
                    const AllReduce& interference);

}  // namespace tapestry::distributed::planner
