#pragma once
// What gpt tune says of its model to a distributed::Strategy, and what each rank computes in a step.
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tapestry/apps/common/training_job.h"
#include "tapestry/apps/gpt/divided_model.h"
#include "tapestry/apps/gpt/tune.h"
#include "tapestry/apps/gpt/tune_data.h"
#include "tapestry/nn/optim/grad_scaler.h"

namespace apps::gpt {

class TuneParallel : public TrainingJob {
 public:
  /// Joins the job: see TrainingJob.
  explicit TuneParallel(const TuneOptions& options);

  void wrap(tapestry::nn::LanguageModel& model);
  /// Adds the gradients of the mean loss of all targets of these sequences, which are those of all ranks and
  /// parts of a step, and returns it, or nothing if no sequence has a target. Collective.
  std::optional<double> forward_backward(const tapestry::data::PackedSequences& data,
                                         const std::vector<std::int64_t>& sequences,
                                         tapestry::optim::GradScaler& scaler);
  /// The mean loss of the targets of the first `most` sequences (0: all), in evaluation mode and without
  /// gradients. Returns nothing if stops() became true. Collective.
  std::optional<double> held_out_loss(const tapestry::data::PackedSequences& data, std::int64_t most,
                                      const std::function<bool()>& stops);
  /// DividedModel::generate() of the model that was wrapped. Collective.
  std::vector<std::int64_t> generate(std::span<const std::int64_t> prompt,
                                     const tapestry::nn::GenerateOptions& options,
                                     tapestry::nn::Sampler& sampler) {
    return divided_->generate(prompt, options, sampler);
  }

 private:
  const bool keep_activations_;
  const std::string precision_;
  std::unique_ptr<DividedModel> divided_;
};

}  // namespace apps::gpt
