#pragma once
// What a training loop needs around DDP: random numbers that agree or differ, means over all ranks,
// checkpoints.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "tapestry/distributed/comm/process_group.h"
#include "tapestry/nn/checkpoint.h"

namespace tapestry::distributed {

/// A seed of its own for each rank, for what must differ between them (dropout, environments, augmentation):
/// Philox 4x32-10 of (seed, rank), so that neighbouring seeds and ranks give unrelated streams. What must
/// agree (initial weights, the sampler's order) takes `seed` itself.
std::uint64_t rank_seed(std::uint64_t seed, int rank);
/// manual_seed(rank_seed(seed, group.rank())): call it when the model has been made.
void manual_seed_by_rank(const ProcessGroup& group, std::uint64_t seed);

/// A mean for a log, right for uneven counts: sums and counts are added over the ranks before the division. A
/// mean of the ranks' means is another number when the last batch of one is shorter.
class GlobalMean {
 public:
  /// `count` samples whose mean is `mean`; of no samples it may be anything, NaN for one.
  void add(double mean, double count = 1) {
    if (count != 0) sum_ += mean * count, count_ += count;
  }
  /// Collective: the mean over all ranks; NaN if nothing was added on any of them. Starts anew.
  double reduce(ProcessGroup& group);

 private:
  double sum_ = 0, count_ = 0;
};

/// nn::Checkpointer for a job: every call is one of all ranks, and fails on all ranks if it fails on one.
/// Rank 0 alone writes, with the state of every rank's generators; all read, so the folder must be one that
/// all see. What was saved by N ranks and is resumed by N goes on bit for bit. With another number, ranks
/// that were not there before get generators derived from rank 0's; a loader's position is the caller's, and
/// in general means nothing then.
class DistributedCheckpointer {
 public:
  using Options = nn::CheckpointerOptions;
  DistributedCheckpointer(std::shared_ptr<ProcessGroup> group, const std::string& folder,
                          const Options& options = {});

  /// Throws as nn::Checkpointer::save on rank 0, DistributedError on the others. Returns the path, on all
  /// ranks.
  std::string save(const nn::Training& training, const nn::Progress& progress);
  /// The latest one, onto the devices on which each rank's model is; none on any rank if there is none.
  std::optional<nn::Progress> resume(const nn::Training& training);

 private:
  std::shared_ptr<ProcessGroup> group_;
  std::unique_ptr<nn::Checkpointer> files_;  // on rank 0
};

}  // namespace tapestry::distributed
