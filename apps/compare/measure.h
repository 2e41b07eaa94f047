#pragma once
#include <optional>

#include "tapestry/apps/compare/mode.h"
#include "tapestry/apps/compare/result.h"

namespace apps::compare {

/// Trains, and times the steps that are to be timed. All of them are recorded: a span costs about a
/// microsecond, and so the parts of the step with the median time add up to it. Of several processes the
/// first one returns the result of all, the others none.
std::optional<Result> measure(const Mode& mode, const Workload& workload);

}  // namespace apps::compare
