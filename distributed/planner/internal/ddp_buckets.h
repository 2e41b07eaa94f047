#pragma once
// The buckets of DistributedDataParallel in a predicted backward pass.
#include <vector>

#include "tapestry/distributed/planner/internal/cost_model.h"
#include "tapestry/distributed/planner/internal/overlap.h"
#include "tapestry/distributed/planner/internal/passes.h"

namespace tapestry::distributed::planner {

/// Buckets in the order in which backward completes them.
struct DdpBuckets {
  std::vector<double> bytes;
  std::vector<double> ready_s;           ///< seconds of computing until the bucket is complete
  std::vector<std::size_t> of_gradient;  ///< the bucket of each gradient, in the order in which they arrive
  double compute_s = 0;                  ///< backward with the copies of gradients into buckets
};

/// Assigns the gradients of a range to buckets like Reducer: from the last layer to the first. The backward
/// of the blocks takes `times`, and copies take `slowdown` times as long as alone. With `parts`, assigns the
/// gradients of experts, which have a Reducer of their own; otherwise all others.
DdpBuckets ddp_buckets(const CostModel& c, BlockRange range, const BlockTimes& times, double slowdown,
                       bool parts = false);

/// The buckets in which stage 1 of ZeRO gathers parameters: from the first layer to the last, and without a
/// smaller first bucket. They have no times.
DdpBuckets zero1_buckets(const CostModel& c, BlockRange range, bool parts = false);

}  // namespace tapestry::distributed::planner
