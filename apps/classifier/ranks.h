#pragma once
// Data parallel training over several processes (DistributedDataParallel, fully_shard), or over the devices
// of one process (DataParallel). Without a launcher, the process is a job of one rank.
#include <memory>
#include <optional>
#include <vector>

#include "tapestry/apps/classifier/options.h"
#include "tapestry/apps/classifier/tally.h"
#include "tapestry/apps/common/job_requests.h"
#include "tapestry/distributed/data_parallel/data_parallel.h"
#include "tapestry/distributed/ddp/ddp.h"
#include "tapestry/distributed/fsdp/fsdp.h"

namespace apps {

class Ranks {
 public:
  /// Joins the job. Throws UsageError if there are several processes but --parallel is none or dp, if the
  /// ranks have different options, if --compress and --parallel exclude each other, or if the launcher would
  /// restart the job but the options do not resume a run.
  explicit Ranks(const Options& options);

  const std::shared_ptr<tapestry::distributed::ProcessGroup>& group() const { return group_; }
  int rank() const { return group_->rank(); }
  int size() const { return group_->size(); }
  /// True on rank 0, which prints and writes files.
  bool first() const { return rank() == 0; }

  /// Wraps or shards the model as --parallel requests. From then on, its gradients are averaged over the
  /// ranks or devices. A model that is to be sharded may be on the meta device: each rank then gives memory
  /// to its part alone.
  void wrap(tapestry::nn::Module& model, const Options& options);
  tapestry::Tensor forward(tapestry::nn::Module& model, const tapestry::Tensor& x);
  /// Broadcasts the running statistics of rank 0, before an evaluation that is divided among the ranks.
  void sync_buffers();
  /// True if every forward is collective, because parameters are gathered. All ranks must then call the model
  /// equally often, also in an evaluation.
  bool forward_is_collective() const { return fsdp_.has_value(); }

  // The functions below are collective: every rank must call them.
  Tally sum(const Tally& own) const;
  void sum(std::vector<std::int64_t>& counts) const;
  /// JobRequests::agree().
  Request agree(const Request& own) { return requests_->agree(own); }

 private:
  std::shared_ptr<tapestry::distributed::ProcessGroup> group_;
  std::optional<tapestry::distributed::DistributedDataParallel<tapestry::nn::Module>> ddp_;
  std::optional<tapestry::distributed::DataParallel<tapestry::nn::Module>> dp_;
  std::optional<tapestry::distributed::FullyShard> fsdp_;
  std::optional<JobRequests> requests_;
};

}  // namespace apps
