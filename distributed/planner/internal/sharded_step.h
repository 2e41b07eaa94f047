#pragma once
// A step under fully_shard(), or one pass of it, as phases and collectives.
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tapestry/distributed/planner/internal/cost_model.h"
#include "tapestry/distributed/planner/internal/passes.h"
#include "tapestry/distributed/planner/internal/step_queues.h"

namespace tapestry::distributed::planner {

/// One unit per block. A gather is posted when the unit before begins to compute, because then the unit
/// before that is freed. The first gather of backward is posted when the last block's backward reads its
/// parameters, so after the backward of the loss. The collectives of backward alternate: the gradients of a
/// unit are divided when it has ended, and then the next unit but one is gathered. The parts that a device
/// keeps are added over the replicas in a queue of their own, unit by unit.
/// tests/planner/sharded_step_test.cpp compares the collectives with those that fully_shard() posts.
struct ShardedStep {
  struct Unit {
    bool gathers;  ///< an all-gather of parameters; otherwise a sum of gradients
    std::size_t block;
    std::int64_t bytes;  ///< of what the devices of the axis gather or add
    std::size_t axis;
  };
  /// Forward of all blocks and of the loss, if there is a forward, then backward of the loss and of all
  /// blocks in reverse order, if there is a backward.
  std::vector<ComputePhase> phases;
  std::vector<Collective> collectives;
  std::vector<Unit> units;      ///< what each of the collectives moves
  std::size_t forward_end = 0;  ///< the number of phases of forward
  /// The phases at whose end divided layers wait, with their block and the samples of the pass.
  struct LayerWait {
    std::size_t phase;
    const BlockProfile* block;
    bool backward;
    double samples;
  };
  std::vector<LayerWait> layer_waits;

  /// Either pass may be null.
  ShardedStep(const CostModel& c, BlockRange range, const BlockTimes* forward, const BlockTimes* backward,
              const UnitCollectives& with);
  /// The part of the next block's backward at whose end the gradients of block k are divided, in the
  /// simulated `times` of this step. 1 for the first block.
  double divided_after(const StepQueues& times, std::size_t k) const;
  /// The waits and the collectives of this simulated step: "blocks.1 all_gather".
  std::vector<Communication> communication(const CostModel& c, const StepQueues& times) const;

 private:
  int post(const CostModel& c, std::size_t k, int after, bool at_begin);
  void add(const CostModel& c, std::size_t k, int after);
  BlockRange range_;
  std::size_t shard_ = 0;  // the axis that divides the model
};

}  // namespace tapestry::distributed::planner
