#pragma once
// tapestry-run --doctor. Not in tapestry.h: for the launcher and its tests.
#include <string>
#include <vector>

#include "tapestry/distributed/comm/preflight.h"
#include "tapestry/distributed/launch/options.h"

namespace tapestry::distributed::launch {

/// The reports that this node's ranks would give if the job were started now, with `environment`.
std::vector<RankReport> expected_reports(const LaunchOptions& options, const Variables& environment);

/// Prints what was found and what is wrong with it, each with its remedy. Returns 1 if something stands in
/// the way of the job, else 0.
int doctor(const LaunchOptions& options);

}  // namespace tapestry::distributed::launch
