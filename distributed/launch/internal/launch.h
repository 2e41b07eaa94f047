#pragma once
// Runs a whole job after the options have been parsed.
#include "tapestry/distributed/launch/internal/options.h"

namespace tapestry::distributed::launch {

/// Runs the job on this node: the store (on node 0), the ranks and the restarts. Prints the first failure
/// last. Returns the exit status.
int launch(const LaunchOptions& options);

}  // namespace tapestry::distributed::launch
