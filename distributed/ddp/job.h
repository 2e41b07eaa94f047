#pragma once
// What a training loop needs besides DDP: means over all ranks. distributed/common/seeds.h has the seeds of
// ranks, and distributed/checkpoint/checkpoint.h the checkpoints.
#include "tapestry/distributed/comm/process_group.h"
#include "tapestry/distributed/common/seeds.h"

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

}  // namespace tapestry::distributed
