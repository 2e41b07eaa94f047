#pragma once
// A folder of checkpoints of a job, in any mode of training.
//
//   distributed::Checkpointer checkpoints("runs/a/checkpoints", world, {.keep_last = 3});
//   nn::Progress progress = checkpoints.resume({&net, &optimizer, &schedule}).value_or(nn::Progress{});
//   ...
//   checkpoints.save({&net, &optimizer, &schedule}, {.epoch = epoch, .step = step});
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tapestry/distributed/checkpoint/sharded_checkpoint.h"

namespace tapestry::distributed {

enum class CheckpointFiles : std::uint8_t {
  one,     ///< one file per checkpoint, through rank 0: save_checkpoint()
  sharded  ///< one folder per checkpoint, with a file of each rank: save_sharded()
};

/// nn::Checkpointer for a job. Every call except latest() and steps() is collective, and fails on all ranks
/// if it fails on one. All ranks must see the folder; its name is rank 0's. It may have checkpoints of both
/// kinds, for example of a job that changed its mode.
class Checkpointer : private nn::Checkpointer {
 public:
  using Options = nn::CheckpointerOptions;
  /// Creates the folder if it does not exist. A null group stands for one process. Without `files`,
  /// save() writes shards if parameters are divided among ranks or devices, and one file otherwise. Throws
  /// IoError.
  Checkpointer(const std::string& folder, std::shared_ptr<ProcessGroup> group, const Options& options = {},
               std::optional<CheckpointFiles> files = {});

  /// Writes the checkpoint of progress.step, then removes checkpoints that need not be kept, and what dead
  /// jobs left incomplete. Returns its path on all ranks. Takes the folder's lock, and holds it until this
  /// object is destroyed. Throws the errors of save_checkpoint() or save_sharded(), and ValueError if the
  /// folder contains a later step, which belongs to another run.
  std::string save(const ShardedTraining& training, const nn::Progress& progress);
  /// Takes the lock, and loads the latest checkpoint if there is one. If a rank finds that a file of it is
  /// missing, truncated, changed, or not its own, rank 0 prints a warning that names the file, and all ranks
  /// load the checkpoint before it. Throws IoError if no checkpoint is undamaged, and ValueError if a newer
  /// library has written the latest one. A job that resumes with the
  /// same number of ranks continues bit for bit.
  std::optional<nn::Progress> resume(const ShardedTraining& training);
  /// The path of the last checkpoint that is complete: of shards, all exist with their lengths.
  std::optional<std::string> latest() const;
  /// The steps of all complete checkpoints, in ascending order.
  std::vector<std::int64_t> steps() const;
  using nn::Checkpointer::folder;

 private:
  static const Format kShards;
  std::shared_ptr<ProcessGroup> group_;  // its rank 0 has the lock and knows the checkpoints
  std::optional<CheckpointFiles> files_;
};

}  // namespace tapestry::distributed
