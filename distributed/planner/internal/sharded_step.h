#pragma once
// A step under fully_shard() as phases and collectives.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tapestry/distributed/planner/internal/cost_model.h"
#include "tapestry/distributed/planner/internal/two_queues.h"

namespace tapestry::distributed::planner {

/// One unit per block. A gather is posted when the unit before begins to compute, because then the unit
/// before that is freed. The first gather of backward is posted when the last block's backward reads its
/// parameters, so after the backward of the loss. The collectives of backward alternate: the gradients of a
/// unit are divided when it has ended, and then the next unit but one is gathered.
/// tests/planner/sharded_step_test.cpp compares the collectives with those that fully_shard() posts.
struct ShardedStep {
  struct Unit {
    bool gathers;  ///< an all-gather of parameters; otherwise a reduce-scatter of gradients
    std::size_t block;
    std::int64_t bytes;  ///< of all parameters of the block
  };
  /// Forward of all blocks, the loss, its backward, and backward of all blocks in reverse order.
  std::vector<ComputePhase> phases;
  std::vector<Collective> collectives;
  std::vector<Unit> units;  ///< what each of the collectives moves
  std::size_t loss = 0;     ///< the number of the phase

  /// `n` is the number of samples per device.
  ShardedStep(const CostModel& c, double n);
  /// The part of the next block's backward at whose end the gradients of block k are divided, in the
  /// simulated `times` of this step. 1 for the first block.
  double divided_after(const TwoQueues& times, std::size_t k) const;
};

}  // namespace tapestry::distributed::planner
