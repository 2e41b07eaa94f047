#pragma once
// Implements tapestry-run --doctor.
#include <string>
#include <vector>

#include "tapestry/distributed/comm/internal/preflight.h"
#include "tapestry/distributed/launch/internal/options.h"

namespace tapestry::distributed::launch {

/// Returns the preflight reports that this node's ranks would give if the job were started now with
/// `environment`.
std::vector<RankReport> expected_reports(const LaunchOptions& options, const Variables& environment);

/// Prints the findings, and a remedy for each problem. Returns 1 if a problem would prevent the job from
/// running, else 0.
int doctor(const LaunchOptions& options);

}  // namespace tapestry::distributed::launch
