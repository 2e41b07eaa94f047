#pragma once
// The moving average of a run's weights (--ema), and its checkpoints.
#include <cstdint>
#include <optional>
#include <string>

#include "tapestry/apps/classifier/options.h"
#include "tapestry/apps/common/training_job.h"
#include "tapestry/nn/optim/averaging.h"

namespace apps {

/// Without --ema, nothing here does anything. Its checkpoints are beside those of the run, in the run's
/// folder "average": one per checkpoint of the run, with the same step, and with the averaged weights under
/// the names of the model. Running statistics are averaged too, because those of the model do not fit the
/// averaged weights. Every call is collective.
class Average {
 public:
  /// `folder` is that of rank 0.
  Average(const Options& options, const TrainingJob& job, tapestry::nn::Module& model,
          const std::string& folder);

  void update();
  /// While the result exists, the model has the averaged weights.
  using Scope = tapestry::optim::AveragedModel::Scope;
  void use(std::optional<Scope>& scope);

  /// Writes the average of the checkpoint of this step. Call it before the run's own checkpoint is saved, so
  /// that every checkpoint of the run has its average.
  void save(std::int64_t step);
  /// Removes the averages of steps that have no checkpoint of the run, by the names of its checkpoints.
  void remove_others(const std::string& checkpoints) const;
  /// Puts the average into the model and takes it from there. Call it before the model is loaded. Throws
  /// IoError if the checkpoint of this step has no average.
  void load(std::int64_t step);

 private:
  std::string path_of(std::int64_t step) const;
  const TrainingJob& job_;
  tapestry::nn::Module& model_;
  const bool sharded_;
  std::string folder_;
  std::optional<tapestry::optim::AveragedModel> average_;
};

}  // namespace apps
