#pragma once
// How a backward pass and the all-reduces of its gradients overlap.
#include <cstddef>
#include <span>

#include "tapestry/distributed/planner/internal/step_queues.h"

namespace tapestry::distributed::planner {

/// Simulates a backward pass of `compute` seconds with one all-reduce per bucket: phases that end when a
/// bucket is complete, and a last one. Bucket i is complete after ready[i] seconds of computing, not before
/// the bucket before it, and its all-reduce takes costs[i] seconds alone. Throws ValueError if the spans have
/// different lengths, if `ready` decreases or exceeds `compute`, or if a factor of `interference` is out of
/// range. Bucket i goes to queue queues[i]. There are as many queues as elements of `interference`.
StepQueues overlap(std::span<const double> ready, std::span<const double> costs, double compute,
                   std::span<const AllReduce* const> interference, std::span<const std::size_t> queues);
/// The same with one queue.
StepQueues overlap(std::span<const double> ready, std::span<const double> costs, double compute,
                   const AllReduce& all_reduce);

}  // namespace tapestry::distributed::planner
