#pragma once
// Runs and watches the ranks of one attempt.
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tapestry/distributed/launch/internal/failure.h"
#include "tapestry/distributed/launch/internal/guard.h"
#include "tapestry/distributed/launch/internal/options.h"
#include "tapestry/distributed/launch/internal/output.h"
#include "tapestry/distributed/launch/internal/signals.h"

namespace tapestry::distributed::launch {

struct RankPlan {
  int rank = 0;
  Variables environment;
  std::string log_path;  ///< if empty, there is no log
  bool show = true;      ///< write to the terminal
};

struct Outcome {
  int stopped_by = 0;  ///< the signal that this process received, or 0
  std::optional<Failure> failure;
  bool elsewhere = false;  ///< another node's failure ended the attempt
};

struct AttemptPlan {
  std::string path;  ///< the path of the program
  std::vector<std::string> command;
  std::vector<RankPlan> ranks;
  std::chrono::milliseconds grace{5000};
  /// If set, called periodically. Returns true if the ranks must end because of another node.
  std::function<bool()> ended_elsewhere;
  /// If set, called at the first failure or signal on this node, before the other ranks are ended.
  std::function<void(const Outcome&)> on_end;
};

/// Starts all ranks and returns when all of them have exited, together with every process left in their
/// process groups. A signal to this process is forwarded to all ranks. After the first failure, the other
/// ranks receive SIGTERM. Ranks that are alive after the grace period, or at a second signal, are killed. It
/// uses one thread and one poll() loop, and no wait in the loop is unbounded.
Outcome supervise(const AttemptPlan& plan, const Signals& signals, const Guard& guard, Terminal& terminal);

}  // namespace tapestry::distributed::launch
