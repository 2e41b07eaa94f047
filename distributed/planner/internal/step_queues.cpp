#include "tapestry/distributed/planner/internal/step_queues.h"

#include <algorithm>
#include <limits>

#include "tapestry/core/error.h"

namespace tapestry::distributed::planner {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

struct Queue {
  std::vector<std::size_t> collectives;  // their numbers, in order
  std::size_t next = 0;                  // the first that has not ended
  double left = 0;                       // of it, in seconds that it would take alone
  double ends = kNever;                  // in how many seconds it ends; kNever if it has not begun
};

void check_arguments(std::span<const ComputePhase> phases, std::span<const Collective> collectives,
                     std::span<const AllReduce* const> interference) {
  for (const AllReduce* const link : interference)
    check(link->compute_stall >= 0 && link->compute_stall <= 1 && link->overlap_slowdown >= 1,
          "[simulate] compute_stall is ", link->compute_stall, " and overlap_slowdown is ",
          link->overlap_slowdown, "; they must be from 0 to 1, and 1 or more");
  const auto count = static_cast<int>(phases.size()), works = static_cast<int>(collectives.size());
  for (const ComputePhase& p : phases)
    check(p.needs >= -1 && p.needs < works, "[simulate] a phase needs collective ", p.needs, " of ", works,
          "; pass a number of a collective, or -1");
  for (const Collective& w : collectives) {
    check(w.after >= -1 && w.after < count, "[simulate] a collective waits for phase ", w.after, " of ",
          count, "; pass a number of a phase, or -1");
    check(w.follows >= -1 && w.follows < works && w.queue < interference.size(),
          "[simulate] a collective of queue ", w.queue, " of ", interference.size(), " follows collective ",
          w.follows, " of ", works, "; pass numbers of a queue and of a collective, or -1");
  }
}

}  // namespace

StepQueues simulate(std::span<const ComputePhase> phases, std::span<const Collective> collectives,
                    std::span<const AllReduce* const> interference) {
  check_arguments(phases, collectives, interference);
  StepQueues result;
  result.computing_s.assign(phases.size(), 0);
  result.waiting_s.assign(phases.size(), 0);
  result.exposed_s.assign(interference.size(), 0);
  result.collective_began_s.assign(collectives.size(), -1);
  result.collective_ended_s.assign(collectives.size(), 0);
  std::vector<Queue> queues(interference.size());
  for (std::size_t i = 0; i < collectives.size(); ++i) queues[collectives[i].queue].collectives.push_back(i);
  for (Queue& q : queues)
    if (!q.collectives.empty()) q.left = collectives[q.collectives[0]].seconds;
  std::vector<bool> ended(collectives.size());
  std::size_t phase = 0, open = collectives.size();  // the first phase, how many collectives have not ended
  bool begun = false;                                // `phase` has begun
  double now = 0, left = 0;
  const auto has_ended = [&](int collective) {
    return collective < 0 || ended[static_cast<std::size_t>(collective)];
  };
  const auto runs = [&](const Queue& q) {
    if (q.next == q.collectives.size()) return false;
    const Collective& w = collectives[q.collectives[q.next]];
    const int current = static_cast<int>(phase);
    return (w.after < current || (w.at_begin && w.after == current && begun)) && has_ended(w.follows);
  };
  while (phase < phases.size() || open > 0) {
    if (phase < phases.size() && !begun && has_ended(phases[phase].needs)) {
      begun = true;
      left = phases[phase].seconds;
    }
    double stall = 0;
    std::size_t busy = queues.size();  // the last queue that runs
    for (std::size_t q = 0; q < queues.size(); ++q) {
      queues[q].ends = kNever;
      if (!runs(queues[q])) continue;
      busy = q;
      stall += interference[q]->compute_stall;
      double& began = result.collective_began_s[queues[q].collectives[queues[q].next]];
      if (began < 0) began = now;
      queues[q].ends = begun ? queues[q].left * interference[q]->overlap_slowdown : queues[q].left;
    }
    check(begun || busy < queues.size(), "[simulate] phase ", phase,
          " and a collective wait for each other; order the collectives as the phases need them");
    const double speed = begun ? std::max(0.0, 1 - stall) : 0;
    const double phase_ends = speed > 0 ? left / speed : begun && left <= 0 ? 0 : kNever;
    double passed = phase_ends;
    for (const Queue& q : queues) passed = std::min(passed, q.ends);
    if (begun) {
      result.computing_s[phase] += passed;
    } else if (phase < phases.size()) {
      result.waiting_s[phase] += passed;
      result.exposed_s[collectives[static_cast<std::size_t>(phases[phase].needs)].queue] += passed;
    } else {
      result.tail_s += passed;
      result.exposed_s[busy] += passed;
    }
    now += passed;
    left -= passed * speed;
    for (std::size_t i = 0; i < queues.size(); ++i) {
      Queue& q = queues[i];
      if (q.ends == kNever) continue;
      if (q.ends > passed) {
        q.left -= begun ? passed / interference[i]->overlap_slowdown : passed;
        continue;
      }
      const std::size_t done = q.collectives[q.next++];
      ended[done] = true;
      result.collective_ended_s[done] = now;
      --open;
      if (q.next < q.collectives.size()) q.left = collectives[q.collectives[q.next]].seconds;
    }
    if (phase_ends <= passed) {
      ++phase;
      result.phase_ended_s.push_back(now);
      begun = false;
    }
  }
  return result;
}

StepQueues simulate(std::span<const ComputePhase> phases, std::span<const Collective> collectives,
                    const AllReduce& interference) {
  const AllReduce* const one = &interference;
  return simulate(phases, collectives, std::span(&one, 1));
}

}  // namespace tapestry::distributed::planner
