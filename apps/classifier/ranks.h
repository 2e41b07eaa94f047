#pragma once
// The processes that train together, each with the whole model and its share of a batch. One alone is a job
// of one, and may have several devices.
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
  /// Joins the job. Throws UsageError if there are several processes and the options do not say how they
  /// train.
  explicit Ranks(const Options& options);

  const std::shared_ptr<tapestry::distributed::ProcessGroup>& group() const { return group_; }
  int rank() const { return group_->rank(); }
  int size() const { return group_->size(); }
  /// The one that prints and writes.
  bool first() const { return rank() == 0; }

  /// From now on gradients of `model` are averaged over the ranks, or over the devices.
  void wrap(tapestry::nn::Module& model, const Options& options);
  tapestry::Tensor forward(tapestry::nn::Module& model, const tapestry::Tensor& x);
  /// Before a test that the ranks share: all have rank 0's running statistics.
  void sync_buffers();

  // Collective: over all ranks.
  Tally sum(const Tally& own) const;
  void sum(std::vector<std::int64_t>& counts) const;
  /// Whether one of them has been asked to stop: in a job of several, by the step before this one, which
  /// costs no waiting. All get the same answer.
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
