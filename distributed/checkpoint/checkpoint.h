#pragma once
// Checkpoints in one file, from every mode of training into every other: one process, DDP, fully_shard,
// ShardedDataParallel, ZeroRedundancyOptimizer, and the stages of a pipeline.
//
//   distributed::save_checkpoint("run.safetensors", world, {&net, &optimizer}, {.step = step});
//   nn::Progress progress = distributed::load_checkpoint("run.safetensors", world, {&net, &optimizer});
//
// The file is that of nn::save_checkpoint(): its tensors are whole and have PyTorch's names, so
// nn::load_model(), nn::load_checkpoint() and PyTorch read it. sharded_checkpoint.h has checkpoints for
// models that are too large to pass through rank 0.
#include <memory>
#include <string>

#include "tapestry/distributed/checkpoint/sharded_checkpoint.h"
#include "tapestry/distributed/comm/process_group.h"
#include "tapestry/nn/checkpoint.h"

namespace tapestry::distributed {

/// Writes the whole model, the optimizer with its whole state, the schedule, the scaler and the generators of
/// all ranks to one file. Collective over the ranks of `group`; null stands for one process. Rank 0 writes,
/// and the others send it the parts that it does not store, about 16 MiB at a time. The file is replaced
/// atomically. PyTorch's counterpart is get_state_dict() with full_state_dict = True, and torch.save() on
/// rank 0.
///
/// For the stages of a pipeline pass {pipeline.stages(), &optimizer}. The state of a ZeroRedundancyOptimizer
/// over these ranks is collected first.
///
/// Throws the errors of save_sharded() on all ranks, before anything is written, if the ranks' tensors do not
/// fit together; and IoError on rank 0 and DistributedError on the others if rank 0 cannot write.
void save_checkpoint(const std::string& path, const std::shared_ptr<ProcessGroup>& group,
                     const ShardedTraining& training, const nn::Progress& progress);
/// Loads a file of save_checkpoint() or nn::save_checkpoint(). Collective over the ranks of `group`, which
/// all must see the file: each reads the part that it stores (load_sharded()). Fails on all ranks if it fails
/// on one.
nn::Progress load_checkpoint(const std::string& path, const std::shared_ptr<ProcessGroup>& group,
                             const ShardedTraining& training);

}  // namespace tapestry::distributed
