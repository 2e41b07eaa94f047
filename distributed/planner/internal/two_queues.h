#pragma once
// A device that computes one phase after another while collectives run one after another beside it.
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

/// A collective takes `seconds` alone. It begins when the collective before has ended and the phase with the
/// number `after` has begun (`at_begin`) or ended; -1: it waits for no phase.
struct Collective {
  double seconds = 0;
  int after = -1;
  bool at_begin = false;
};

struct TwoQueues {
  std::vector<double> computing_s;  ///< per phase, including delays caused by collectives
  std::vector<double> waiting_s;    ///< per phase, before it begins
  double tail_s = 0;                ///< collectives after the last phase
  std::vector<double> phase_ended_s, collective_ended_s;  ///< on the clock
};

/// Simulates both queues. While both are busy, collectives take interference.overlap_slowdown times as long,
/// and phases run at 1 - interference.compute_stall of their speed. Throws ValueError if a number is out of
/// range, or if a phase and a collective wait for each other.
TwoQueues simulate(std::span<const ComputePhase> phases, std::span<const Collective> collectives,
                   const AllReduce& interference);

}  // namespace tapestry::distributed::planner
