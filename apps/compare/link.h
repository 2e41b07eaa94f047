#pragma once
// Measures what a Link holds.
#include "tapestry/apps/compare/profile.h"
#include "tapestry/apps/compare/watched_model.h"
#include "tapestry/apps/compare/workload.h"
#include "tapestry/distributed/comm/process_group.h"

namespace apps::compare {

/// Copies from the workload's first device to its second, and sums over all of them by their workers. A link
/// that costs nothing if there is one device. `ranks` is left out.
Link measure_link(const Workload& workload);

/// Means over the group's ranks of up to as many bytes as a bucket of the model has; then, around backward
/// passes with a device's share of the batch, of buckets that its gradients were copied into: after such a
/// pass, and beside it. Collective, each rank with the model on its device; the first rank's result counts.
AllReduce measure_all_reduce(tapestry::distributed::ProcessGroup& group, WatchedModel& model,
                             const Workload& workload);

}  // namespace apps::compare
