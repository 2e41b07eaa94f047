#pragma once
// PipelineRunner runs a Pipeline's batches: LocalPipeline for all stages in one process, RankPipeline for the
// stage of one rank.
#include <span>
#include <vector>

#include "tapestry/distributed/pipeline/pipeline.h"

namespace tapestry::distributed {

class PipelineRunner {
 public:
  virtual ~PipelineRunner() = default;
  virtual Tensor forward_backward(const TensorList& inputs, const TensorList& targets,
                                  const Pipeline::LossFunction& loss) = 0;
  virtual std::vector<Tensor> evaluate(const TensorList& inputs) = 0;
  virtual PipelineReport report() const = 0;
  virtual Tensor clip_grad_norm_(const std::vector<nn::Parameter>& parameters, double max_norm,
                                 double norm_type, bool error_if_nonfinite) const = 0;
  virtual nn::StateDict whole_state_dict() const = 0;
  virtual nn::LoadResult load_state_dict(const nn::StateDict& dict, bool strict) = 0;
};

/// Throws AutogradError if gradients are switched off.
void check_grad_mode();
/// Throws AutogradError if a target requires gradients.
void check_targets(const TensorList& targets);

/// The number of samples in each micro-batch. Throws ValueError if `exactly` is true and `micro_batches` does
/// not divide `samples`.
std::vector<std::int64_t> micro_batch_sizes(std::int64_t samples, int micro_batches, bool exactly);

/// The factor of the loss of micro-batch `m`.
inline double weight_of(const PipelineOptions& options, std::span<const std::int64_t> sizes, std::size_t m) {
  return options.loss == LossKind::sum ? 1 : chunk_weight(sizes, m);
}

/// Joins the gradients of the inputs' micro-batches and continues backward from the inputs, on the calling
/// thread. `chunks` and `gradients` are [micro-batch][input].
void backward_to_inputs(const TensorList& inputs, const std::vector<bool>& requires_grad,
                        const std::vector<std::vector<Tensor>>& chunks,
                        const std::vector<std::vector<Tensor>>& gradients);

/// Runs f and appends " (place)" to the text of its exception. A std::runtime_error keeps its type; any other
/// std::exception is rethrown as an Error.
void with_error_context(const std::string& place, const std::function<void()>& f);

}  // namespace tapestry::distributed
