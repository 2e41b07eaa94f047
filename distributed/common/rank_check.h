#pragma once
// Compares on request what the ranks of a job train.
#include <memory>

#include "tapestry/distributed/comm/process_group.h"
#include "tapestry/nn/module.h"

namespace tapestry::distributed {

/// Collective: throws ValueError on every rank, with the parameter or option and the ranks, unless all ranks
/// have the same parameters with the same values, and optimizers with the same options and numbers of steps.
/// It reads all parameters and exchanges a hash of each. Of parameters that fully_shard() has divided, the
/// values are not compared, because each rank has other rows. Checkpoints of all ranks compare values and
/// optimizers too before they are written.
/// DistributedDataParallel, fully_shard() and ZeroRedundancyOptimizer compare the cheaper part during
/// training (DdpOptions::check_every).
void check_ranks(const std::shared_ptr<ProcessGroup>& group, const nn::Module& model);

}  // namespace tapestry::distributed
