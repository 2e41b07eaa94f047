#pragma once
// Runs the ranks of one attempt and watches them to their end. Not in tapestry.h: for the launcher.
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tapestry/distributed/launch/failure.h"
#include "tapestry/distributed/launch/guard.h"
#include "tapestry/distributed/launch/options.h"
#include "tapestry/distributed/launch/output.h"
#include "tapestry/distributed/launch/signals.h"

namespace tapestry::distributed::launch {

struct RankPlan {
  int rank = 0;
  Variables environment;
  std::string log_path;  ///< empty: no log
  bool show = true;      ///< on the terminal
};

struct Outcome {
  int stopped_by = 0;  ///< the signal that this process got
  std::optional<Failure> failure;
  bool elsewhere = false;  ///< another node's ranks were first
};

struct AttemptPlan {
  std::string path;  ///< of the program
  std::vector<std::string> command;
  std::vector<RankPlan> ranks;
  std::chrono::milliseconds grace{5000};
  /// If set: asked now and then whether the ranks are to end because of another node.
  std::function<bool()> ended_elsewhere;
  /// If set: called at the first failure or signal here, before anything else is done about it.
  std::function<void(const Outcome&)> on_end;
};

/// Starts all ranks and returns when all have ended, together with whatever they started and left behind in
/// their process groups. A signal to this process goes to all of them; the first failure makes the others get
/// SIGTERM; who has not ended after the grace period (or at a second signal) is killed. One thread, one
/// poll() loop, no waits without bound in it.
Outcome supervise(const AttemptPlan& plan, const Signals& signals, const Guard& guard, Terminal& terminal);

}  // namespace tapestry::distributed::launch
