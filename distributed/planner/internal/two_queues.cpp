#include "tapestry/distributed/planner/internal/two_queues.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "tapestry/core/error.h"

namespace tapestry::distributed::planner {

TwoQueues simulate(std::span<const ComputePhase> phases, std::span<const Collective> collectives,
                   const AllReduce& interference) {
  const double slowdown = interference.overlap_slowdown, speed = 1 - interference.compute_stall;
  check(speed >= 0 && speed <= 1 && slowdown >= 1, "[simulate] compute_stall is ", interference.compute_stall,
        " and overlap_slowdown is ", slowdown, "; they must be from 0 to 1, and 1 or more");
  const auto count = static_cast<int>(phases.size()), works = static_cast<int>(collectives.size());
  for (const ComputePhase& p : phases)
    check(p.needs >= -1 && p.needs < works, "[simulate] a phase needs collective ", p.needs, " of ", works,
          "; pass a number of a collective, or -1");
  for (const Collective& w : collectives)
    check(w.after >= -1 && w.after < count, "[simulate] a collective waits for phase ", w.after, " of ",
          count, "; pass a number of a phase, or -1");

  TwoQueues result;
  result.computing_s.assign(phases.size(), 0);
  result.waiting_s.assign(phases.size(), 0);
  double now = 0;
  int phase = 0, work = 0;  // the first that have not ended
  bool begun = false;       // `phase` has begun
  double left = 0, work_left = works > 0 ? collectives[0].seconds : 0;
  while (phase < count || work < works) {
    if (phase < count && !begun && phases[static_cast<std::size_t>(phase)].needs < work) {
      begun = true;
      left = phases[static_cast<std::size_t>(phase)].seconds;
    }
    const auto posted = [&](const Collective& w) {
      return w.after < phase || (w.at_begin && w.after == phase && begun);
    };
    const bool communicates = work < works && posted(collectives[static_cast<std::size_t>(work)]);
    check(begun || communicates, "[simulate] phase ", phase, " and collective ", work,
          " wait for each other; order the collectives as the phases need them");
    const double compute_speed = !begun ? 0 : communicates ? speed : 1;
    const double work_speed = !communicates ? 0 : begun ? 1 / slowdown : 1;
    constexpr double kNever = std::numeric_limits<double>::infinity();
    const double phase_ends = compute_speed > 0 ? left / compute_speed : begun && left <= 0 ? 0 : kNever;
    const double work_ends = work_speed > 0 ? work_left / work_speed : kNever;
    const double passed = std::min(phase_ends, work_ends);
    if (begun) result.computing_s[static_cast<std::size_t>(phase)] += passed;
    else if (phase < count) result.waiting_s[static_cast<std::size_t>(phase)] += passed;
    else result.tail_s += passed;
    now += passed;
    left -= passed * compute_speed;
    work_left -= passed * work_speed;
    if (work_ends <= passed) {
      ++work;
      result.collective_ended_s.push_back(now);
      work_left = work < works ? collectives[static_cast<std::size_t>(work)].seconds : 0;
    }
    if (phase_ends <= passed) {
      ++phase;
      result.phase_ended_s.push_back(now);
      begun = false;
    }
  }
  return result;
}

}  // namespace tapestry::distributed::planner
