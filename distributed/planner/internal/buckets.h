#pragma once
// All-reduce buckets for measurements of data parallelism.
#include <chrono>
#include <cstddef>
#include <vector>

#include "tapestry/distributed/comm/process_group.h"
#include "tapestry/distributed/planner/internal/profiled_model.h"

namespace tapestry::distributed::planner {

/// Holds one bucket per block of the model. It observes the steps: when the gradients of a block are
/// complete, it copies them into the block's bucket and replaces them by views of the bucket, as Reducer
/// does.
class Buckets : public StepObserver {
 public:
  Buckets(ProfiledModel& model, ProcessGroup& group);

  /// If true, the all-reduce of each bucket is launched during backward. The bucket of the first block is
  /// left out, because its gradients come last.
  bool overlaps = false;

  void enter(Activity activity, std::size_t k) override;
  /// Runs the model's backward and then fills the bucket of the first block.
  void backward();
  /// Averages all buckets over the ranks, one after another.
  void average_all();
  /// The total duration in seconds of the all-reduces that were launched in the last backward. Each is timed
  /// from when the last rank could begin it: it had launched it, and the all-reduce before had ended. The
  /// thread that communicates may begin later, because the threads that compute keep the cores busy.
  /// Collective.
  double overlapped_s() const;
  /// The bytes of these buckets.
  double overlapped_bytes() const;

 private:
  void fill(std::size_t k);
  void launch(std::size_t k);

  ProfiledModel& model_;
  ProcessGroup& group_;
  std::vector<Tensor> buckets_;
  std::vector<std::vector<Tensor>> views_;  // per block, one per parameter
  struct Launched {
    Work work;
    std::chrono::steady_clock::time_point at;
  };
  std::vector<Launched> works_;  // since the last forward
};

/// The elementwise maximum of `values` over all ranks. Collective.
std::vector<double> largest_of(ProcessGroup& group, Device device, const std::vector<double>& values);

}  // namespace tapestry::distributed::planner
