#pragma once
// What a training loop needs besides DDP: means over all ranks, and checkpoints. distributed/common/seeds.h
// has the seeds of ranks.
#include <memory>
#include <optional>
#include <string>

#include "tapestry/distributed/comm/process_group.h"
#include "tapestry/distributed/common/seeds.h"
#include "tapestry/nn/checkpoint.h"

namespace tapestry::distributed {

/// A mean over all ranks for a log. It adds sums and counts over the ranks before it divides, so it is right
/// if the ranks' last batches have different sizes. A mean of the ranks' means would not be.
class GlobalMean {
 public:
  /// Adds `count` samples with this mean. If `count` is 0, `mean` is ignored and may be NaN.
  void add(double mean, double count = 1) {
    if (count != 0) sum_ += mean * count, count_ += count;
  }
  /// Collective: returns the mean over all ranks, or NaN if no rank added samples. Resets the sums.
  double reduce(ProcessGroup& group);

 private:
  double sum_ = 0, count_ = 0;
};

/// nn::Checkpointer for a job. Every call is collective, and fails on all ranks if it fails on one. Rank 0
/// writes the checkpoint, with the state of every rank's generators. All ranks read it, so the folder must be
/// visible to all of them. A job that resumes with the same number of ranks continues bit for bit. With more
/// ranks, each additional rank derives its generators from rank 0's. The position of a data loader is up to
/// the caller; it is in general meaningless if the number of ranks changed.
class DistributedCheckpointer {
 public:
  using Options = nn::CheckpointerOptions;
  DistributedCheckpointer(std::shared_ptr<ProcessGroup> group, const std::string& folder,
                          const Options& options = {});

  /// Saves a checkpoint and returns its path on all ranks. Before it writes, it throws ValueError on every
  /// rank if the ranks have different weights or optimizers (check_ranks). If saving fails, rank 0 throws the
  /// error of nn::Checkpointer::save and the other ranks throw DistributedError.
  std::string save(const nn::Training& training, const nn::Progress& progress);
  /// Locks the folder (nn::Checkpointer::lock), and loads the latest checkpoint onto the devices of each
  /// rank's model. Returns nothing on every rank if there is no checkpoint. Throws IoError if the generator
  /// state of a rank that saved the checkpoint is missing or invalid. nn::Checkpointer's files are accepted
  /// as checkpoints of one rank.
  std::optional<nn::Progress> resume(const nn::Training& training);

 private:
  std::shared_ptr<ProcessGroup> group_;
  std::unique_ptr<nn::Checkpointer> files_;  // null except on rank 0
};

}  // namespace tapestry::distributed
