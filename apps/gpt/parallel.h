#pragma once
// What gpt train says of its model to a distributed::Strategy, and what each rank computes in a step.
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "tapestry/apps/common/training_job.h"
#include "tapestry/apps/gpt/corpus.h"
#include "tapestry/apps/gpt/divided_model.h"
#include "tapestry/apps/gpt/train_options.h"
#include "tapestry/nn/optim/grad_scaler.h"

namespace apps::gpt {

/// Throws UsageError unless each rank gets equally many sequences in each of `parts` parts of a batch.
void check_batch(const TrainingJob& job, const char* command, std::int64_t batch_size, std::int64_t parts);

/// The mean loss of batches that the ranks divide: rank r of n reads batches r, r + n, ... A rank that has
/// none left computes the first one, because the ranks make their calls together. Returns nothing if stops()
/// returned true. Collective.
std::optional<double> mean_loss(TrainingJob& job, std::int64_t batches,
                                const std::function<tapestry::distributed::Batch(std::int64_t index)>& read,
                                const std::function<bool()>& stops);

class Parallel : public TrainingJob {
 public:
  /// Joins the job: see TrainingJob.
  explicit Parallel(const TrainOptions& options);

  /// Strategy::wrap(). A model that is to be sharded may be on the meta device. With `has_documents`, the
  /// sequences may have several documents.
  void wrap(tapestry::nn::LanguageModel& model, bool has_documents);
  /// AdamW, whose state the strategy may divide. Only matrices decay.
  std::unique_ptr<tapestry::optim::Optimizer> make_optimizer(tapestry::nn::LanguageModel& model) const;
  /// Adds the gradients of the mean loss of step `step`, multiplied by the scaler's scale, and returns this
  /// rank's part of the loss: the parts of all ranks add up.
  double forward_backward(Windows& text, std::int64_t step, tapestry::optim::GradScaler& scaler);
  /// DividedModel::generate() of the model that was wrapped. Collective.
  std::vector<std::int64_t> generate(std::span<const std::int64_t> prompt,
                                     const tapestry::nn::GenerateOptions& options,
                                     tapestry::nn::Sampler& sampler) {
    return divided_->generate(prompt, options, sampler);
  }
  /// The mean loss of the first windows of a text, or nothing if stops() returned true. Collective.
  std::optional<double> held_out_loss(const Windows& text, std::int64_t windows,
                                      const std::function<bool()>& stops);

 private:
  tapestry::distributed::Batch on_device(const Batch& batch) const;

  const TrainOptions options_;
  std::unique_ptr<DividedModel> divided_;
  std::int64_t targets_ = 0;  // of a step
};

}  // namespace apps::gpt
