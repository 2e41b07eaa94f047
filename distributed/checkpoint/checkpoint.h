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
#include <cstdint>
#include <memory>
#include <optional>
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

/// What a DistributedCheckpointer writes.
enum class CheckpointFiles : std::uint8_t {
  one,     ///< one file per checkpoint, through rank 0 (save_checkpoint())
  sharded  ///< one folder per checkpoint, with a file of each rank (ShardedCheckpointer)
};

/// nn::Checkpointer for a job, in any mode. Every call is collective, and fails on all ranks if it fails on
/// one. All ranks read the files, so the folder must be visible to all of them; its name is rank 0's. The
/// folder may have checkpoints of both kinds, for example of a job that changed its mode; those of the other
/// kind are not removed. A job that resumes with the same number of ranks continues bit for bit. With more
/// ranks, each additional rank derives its generators from rank 0's. The position of a data loader is up to
/// the caller; it is in general meaningless if the number of ranks changed.
class DistributedCheckpointer {
 public:
  using Options = nn::CheckpointerOptions;
  DistributedCheckpointer(std::shared_ptr<ProcessGroup> group, const std::string& folder,
                          const Options& options = {}, CheckpointFiles files = CheckpointFiles::one);

  /// Saves a checkpoint and returns its path on all ranks. Throws the errors of save_checkpoint() and of
  /// nn::Checkpointer::save(), or those of ShardedCheckpointer::save(). A later step of either kind belongs
  /// to another run.
  std::string save(const ShardedTraining& training, const nn::Progress& progress);
  /// Locks the folder (FolderLock), and loads the latest checkpoint of either kind. Returns nothing on every
  /// rank if there is no checkpoint. Throws IoError if the generator state of a rank that saved the
  /// checkpoint is missing or invalid. nn::Checkpointer's files are accepted as checkpoints of one rank.
  std::optional<nn::Progress> resume(const ShardedTraining& training);

 private:
  CheckpointFiles other_kind() const {
    return kind_ == CheckpointFiles::one ? CheckpointFiles::sharded : CheckpointFiles::one;
  }
  std::int64_t last_step(CheckpointFiles kind) const;  // -1 if there is none

  std::shared_ptr<ProcessGroup> group_;
  CheckpointFiles kind_;
  std::string folder_;
  std::unique_ptr<nn::Checkpointer> files_;      // on rank 0, unless there are shards
  std::unique_ptr<ShardedCheckpointer> shards_;  // null unless CheckpointFiles::sharded
};

}  // namespace tapestry::distributed
