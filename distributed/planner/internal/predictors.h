#pragma once
// One function per group of modes. They fill in `breakdown` and `memory`; predict() completes the rest.
#include "tapestry/distributed/pipeline/schedule.h"
#include "tapestry/distributed/planner/internal/cost_model.h"

namespace tapestry::distributed::planner {

Prediction predict_single(const CostModel& c);
/// Predicts DataParallel with DataParallelMode::replicated if `one_process` is true, otherwise
/// DistributedDataParallel.
Prediction predict_replicas(const CostModel& c, bool one_process);
/// DataParallel with DataParallelMode::master.
Prediction predict_master(const CostModel& c);
/// DistributedDataParallel with ZeroRedundancyOptimizer. `stage` is 1 or 2.
Prediction predict_zero(const CostModel& c, int stage);
/// fully_shard() of every block.
Prediction predict_fully_sharded(const CostModel& c);
/// Model parallelism: one stage active at a time.
Prediction predict_model_parallel(const CostModel& c);
Prediction predict_pipeline(const CostModel& c, Schedule schedule);

}  // namespace tapestry::distributed::planner
