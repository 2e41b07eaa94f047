#pragma once
#include <optional>

#include "tapestry/apps/compare/mode.h"
#include "tapestry/apps/compare/result.h"

namespace apps::compare {

/// Trains for workload.warmup and workload.steps steps, and returns the timed step with the median time. All
/// timed steps are recorded, since a span costs only about a microsecond. If `record_memory` is true, it then
/// trains a new model of the mode and records the memory of one more step, which is not timed. If there are
/// several processes, rank 0 returns the result of all processes and the other ranks return nullopt.
std::optional<Result> measure(const Mode& mode, const Workload& workload, bool record_memory = false);

}  // namespace apps::compare
