#pragma once
// All that tapestry-run does after reading its options. Not in tapestry.h: for the launcher.
#include "tapestry/distributed/launch/options.h"

namespace tapestry::distributed::launch {

/// Runs the job on this node: the store (on node 0), the ranks, restarts, and the first failure said last.
/// Returns the exit status.
int launch(const LaunchOptions& options);

}  // namespace tapestry::distributed::launch
