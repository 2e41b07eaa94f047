#pragma once
// Measures what a Link holds.
#include "tapestry/apps/compare/profile.h"
#include "tapestry/apps/compare/workload.h"
#include "tapestry/distributed/comm/process_group.h"

namespace apps::compare {

/// Copies from the workload's first device to its second, and sums over all of them by their workers. A link
/// that costs nothing if there is one device. `ranks` is left out.
Link measure_link(const Workload& workload);

/// Means over the group's ranks, this one's tensors being on `device`; and how much slower a device computes
/// meanwhile. Collective; the first rank's times count.
AllReduce measure_all_reduce(tapestry::distributed::ProcessGroup& group, tapestry::Device device);

}  // namespace apps::compare
