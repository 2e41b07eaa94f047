#pragma once
// Data parallel training over several processes (DistributedDataParallel), or over the devices of one process
// (DataParallel). A single process is a job of one rank.
#include <memory>
#include <optional>
#include <vector>

#include "tapestry/apps/classifier/options.h"
#include "tapestry/apps/classifier/tally.h"
#include "tapestry/distributed/data_parallel/data_parallel.h"
#include "tapestry/distributed/ddp/ddp.h"

namespace apps {

class Ranks {
 public:
  /// Joins the job. Throws UsageError if there are several processes but --parallel is not ddp.
  explicit Ranks(const Options& options);

  const std::shared_ptr<tapestry::distributed::ProcessGroup>& group() const { return group_; }
  int rank() const { return group_->rank(); }
  int size() const { return group_->size(); }
  /// True on rank 0, which prints and writes files.
  bool first() const { return rank() == 0; }

  /// Wraps the model as --parallel says: from now on its gradients are averaged over the ranks or devices.
  void wrap(tapestry::nn::Module& model, const Options& options);
  tapestry::Tensor forward(tapestry::nn::Module& model, const tapestry::Tensor& x);
  /// Broadcasts the running statistics of rank 0, before an evaluation that is divided among the ranks.
  void sync_buffers();

  // Collective: every rank must call these.
  Tally sum(const Tally& own) const;
  void sum(std::vector<std::int64_t>& counts) const;
  /// Returns the same answer on all ranks: true if a rank has requested to stop. With several ranks the
  /// answer is that of the previous call, so that the all-reduce overlaps the step between the calls.
  bool stop(bool requested);

 private:
  std::shared_ptr<tapestry::distributed::ProcessGroup> group_;
  std::optional<tapestry::distributed::DistributedDataParallel<tapestry::nn::Module>> ddp_;
  std::optional<tapestry::distributed::DataParallel<tapestry::nn::Module>> dp_;
  tapestry::Tensor requests_;
  tapestry::distributed::Work asked_;
  bool asking_ = false;
};

}  // namespace apps
