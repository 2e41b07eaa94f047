#pragma once
// Tuning on one device, on several devices of this process (dp), or in a job of several processes (ddp,
// fsdp).
#include <functional>
#include <optional>
#include <vector>

#include "tapestry/apps/gpt/job.h"
#include "tapestry/apps/gpt/tune.h"
#include "tapestry/apps/gpt/tune_data.h"
#include "tapestry/nn/optim/grad_scaler.h"

namespace apps::gpt {

class TuneParallel : public Job {
 public:
  /// Joins the job: see Job.
  explicit TuneParallel(const TuneOptions& options);

  /// Adds the gradients of the mean loss of all targets of these batches, which are those of all ranks, and
  /// returns it, or nothing if no sequence has a target. Each rank computes its rows of each batch.
  /// Collective.
  std::optional<double> forward_backward(tapestry::nn::LanguageModel& model,
                                         const tapestry::data::PackedSequences& data,
                                         const std::vector<std::vector<std::int64_t>>& batches,
                                         tapestry::optim::GradScaler& scaler);
  /// The mean loss of the targets of the first `most` sequences (0: all), in evaluation mode and without
  /// gradients. Returns nothing if stops() became true. Collective.
  std::optional<double> held_out_loss(tapestry::nn::LanguageModel& model,
                                      const tapestry::data::PackedSequences& data, std::int64_t most,
                                      const std::function<bool()>& stops);
  /// While it exists, the parameters of a sharded model are full. Collective.
  std::optional<tapestry::distributed::FullyShard::Unsharded> unshard() const;

 private:
  const bool keep_activations_;
  const std::string precision_;
};

}  // namespace apps::gpt
