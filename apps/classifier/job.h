#pragma once
#include <memory>

#include "tapestry/apps/classifier/options.h"
#include "tapestry/apps/common/training_job.h"

namespace apps {

/// Joins the job: see TrainingJob. Throws UsageError also if the ranks have different options, or if the
/// launcher would restart the job but the options do not resume a run.
std::unique_ptr<TrainingJob> join_job(const Options& options);

}  // namespace apps
