#pragma once
// Training on one device, on several devices of this process (dp, pipeline), or in a job of several processes
// (ddp, zero1, zero2, fsdp). Without a launcher, the process is a job of one rank.
#include <functional>
#include <memory>
#include <optional>

#include "tapestry/apps/gpt/corpus.h"
#include "tapestry/apps/gpt/job.h"
#include "tapestry/apps/gpt/train_options.h"
#include "tapestry/distributed/pipeline/pipeline.h"
#include "tapestry/nn/optim/grad_scaler.h"

namespace apps::gpt {

/// A call of the model with a batch: its loss.
tapestry::Tensor loss_of(tapestry::nn::LanguageModel& model, const Batch& batch);

class Parallel : public Job {
 public:
  /// Joins the job: see Job.
  explicit Parallel(const TrainOptions& options);

  /// Wraps, splits or shards the model. A model that is to be sharded may be on the meta device.
  void wrap(tapestry::nn::LanguageModel& model);
  /// AdamW, divided among the ranks under zero1 and zero2. Only matrices decay.
  std::unique_ptr<tapestry::optim::Optimizer> make_optimizer(tapestry::nn::LanguageModel& model) const;
  /// Adds the gradients of the mean loss of step `step`, multiplied by the scaler's scale, and returns this
  /// rank's part of that loss.
  double forward_backward(tapestry::nn::LanguageModel& model, Windows& text, std::int64_t step,
                          tapestry::optim::GradScaler& scaler);
  /// The mean loss of the first windows of a text, or nothing if stops() returned true. Collective.
  std::optional<double> held_out_loss(tapestry::nn::LanguageModel& model, const Windows& text,
                                      std::int64_t windows, const std::function<bool()>& stops);
  /// Whether the model can be called as it is, to write a sample. If the call is collective, all ranks make
  /// it.
  bool can_generate() const { return !pipeline_ && (first() || fsdp_); }

 private:
  const TrainOptions options_;
  std::optional<tapestry::distributed::Pipeline> pipeline_;
};

}  // namespace apps::gpt
