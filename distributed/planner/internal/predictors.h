#pragma once
// One function per way to use the devices of a step. They fill in `breakdown` and `memory`; predict()
// completes the rest.
#include "tapestry/distributed/planner/internal/cost_model.h"

namespace tapestry::distributed::planner {

/// Each device has the whole model: one device, DataParallel with DataParallelMode::replicated, and
/// DistributedDataParallel with or without ZeroRedundancyOptimizer.
Prediction predict_whole_models(const CostModel& c);
/// DataParallel with DataParallelMode::master.
Prediction predict_master(const CostModel& c);
/// fully_shard() of every block, also in several replicas.
Prediction predict_sharded_models(const CostModel& c);
/// Each device has a stage of the model: Pipeline, and one stage active at a time.
Prediction predict_stages(const CostModel& c);

/// What each device sends, as far as batches, gradients, parameters, stages and divided layers are
/// concerned.
std::vector<PredictedTraffic> traffic_of(const CostModel& c);

}  // namespace tapestry::distributed::planner
