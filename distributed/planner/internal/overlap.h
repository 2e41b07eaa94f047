#pragma once
// How a backward pass and the all-reduces of its gradients overlap.
#include <span>

#include "tapestry/distributed/planner/profile.h"

namespace tapestry::distributed::planner {

struct Overlap {
  double backward_s = 0;  ///< the length of backward, including delays caused by communication
  double exposed_s = 0;   ///< communication that is left when backward ends
};

/// Simulates a backward pass of `compute` seconds with one all-reduce per bucket. Bucket i is complete after
/// ready[i] seconds of computing, and its all-reduce takes costs[i] seconds alone. All-reduces run one after
/// another in the order of buckets. While they overlap backward, they take all_reduce.overlap_slowdown times
/// as long, and backward runs at 1 - all_reduce.compute_stall of its speed. Throws ValueError if the spans
/// have different lengths or a factor is out of range.
Overlap overlap(std::span<const double> ready, std::span<const double> costs, double compute,
                const AllReduce& all_reduce);

}  // namespace tapestry::distributed::planner
