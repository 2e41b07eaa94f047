#pragma once
// What runs a Pipeline's batches: the stages of one process, or this rank's.
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

/// Throws AutogradError where nothing is recorded.
void check_grad_mode();
/// Throws AutogradError if one of them requires gradients.
void check_targets(const TensorList& targets);

/// How a batch is cut: samples, by micro-batch. ValueError where `exactly` and the number does not divide.
std::vector<std::int64_t> micro_batch_shares(std::int64_t samples, int micro_batches, bool exactly);

/// Goes on backward from the inputs of a batch, on the calling thread: from the gradients of their parts,
/// both by micro-batch.
void return_gradients(const TensorList& inputs, const std::vector<bool>& wants_gradient,
                      const std::vector<std::vector<Tensor>>& parts,
                      const std::vector<std::vector<Tensor>>& gradients);

/// Runs f; adds " (place)" to the text of what it throws, which stays what it was.
void named_in_errors(const std::string& place, const std::function<void()>& f);

}  // namespace tapestry::distributed
