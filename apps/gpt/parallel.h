#pragma once
// Training on one device, on several devices of this process (dp, pipeline), or in a job of several processes
// (ddp, zero1, zero2, fsdp). Without a launcher, the process is a job of one rank.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tapestry/apps/common/job_requests.h"
#include "tapestry/apps/gpt/corpus.h"
#include "tapestry/apps/gpt/train_options.h"
#include "tapestry/distributed/data_parallel/data_parallel.h"
#include "tapestry/distributed/ddp/ddp.h"
#include "tapestry/distributed/ddp/job.h"
#include "tapestry/distributed/fsdp/fsdp.h"
#include "tapestry/distributed/pipeline/pipeline.h"
#include "tapestry/nn/models/language_model.h"

namespace apps::gpt {

/// A call of the model with a batch: its loss.
tapestry::Tensor loss_of(tapestry::nn::LanguageModel& model, const Batch& batch);

class Parallel {
 public:
  /// Joins the job. Throws UsageError if the options do not fit to the number of processes or to each other,
  /// or if the ranks have different options. Creates the logical devices, so it must come before any use of
  /// one.
  explicit Parallel(const TrainOptions& options);

  const std::shared_ptr<tapestry::distributed::ProcessGroup>& group() const { return group_; }
  int rank() const { return group_->rank(); }
  int size() const { return group_->size(); }
  /// True on rank 0, which prints and writes files.
  bool first() const { return rank() == 0; }

  /// Wraps, splits or shards the model. A model that is to be sharded may be on the meta device.
  void wrap(tapestry::nn::LanguageModel& model);
  /// AdamW, divided among the ranks under zero1 and zero2. Only matrices decay.
  std::unique_ptr<tapestry::optim::Optimizer> make_optimizer(tapestry::nn::LanguageModel& model) const;
  /// Adds the gradients of the mean loss of step `step`, and returns this rank's part of that loss.
  double forward_backward(tapestry::nn::LanguageModel& model, Windows& text, std::int64_t step);
  /// The mean loss of the first windows of a text, or nothing if stops() returned true. Collective.
  std::optional<double> held_out_loss(tapestry::nn::LanguageModel& model, const Windows& text,
                                      std::int64_t windows, const std::function<bool()>& stops);
  /// Whether the model can be called as it is, to write a sample. If the call is collective, all ranks make
  /// it.
  bool can_generate() const { return !pipeline_ && (first() || fsdp_); }
  /// The full parameters, on rank 0. Collective.
  tapestry::nn::StateDict full_state(tapestry::nn::LanguageModel& model) const;

  /// The sum over the ranks. Collective.
  double sum(double own) const;
  /// JobRequests::agree().
  Request agree(const Request& own) { return requests_->agree(own); }

 private:
  const TrainOptions options_;
  std::shared_ptr<tapestry::distributed::ProcessGroup> group_;
  std::vector<tapestry::Device> devices_;  // of dp and of a pipeline
  std::optional<tapestry::distributed::DistributedDataParallel<tapestry::nn::LanguageModel>> ddp_;
  std::optional<tapestry::distributed::DataParallel<tapestry::nn::LanguageModel>> dp_;
  std::optional<tapestry::distributed::FullyShard> fsdp_;
  std::optional<tapestry::distributed::Pipeline> pipeline_;
  std::optional<JobRequests> requests_;
};

}  // namespace apps::gpt
