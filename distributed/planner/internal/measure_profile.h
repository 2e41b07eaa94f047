#pragma once
#include <cstdint>
#include <vector>

#include "tapestry/distributed/planner/planner.h"

namespace tapestry::distributed::planner {

/// The batch sizes that one device sees in any of the modes: the whole batch, the largest batch per device, a
/// micro-batch, and the largest batch per device for each number of simulated devices. Sorted, without
/// duplicates.
std::vector<std::int64_t> profile_sizes(const TrainingSetup& setup,
                                        const std::vector<int>& simulated_devices = {});

}  // namespace tapestry::distributed::planner
