#include "tapestry/distributed/pipeline/pipeline.h"

#include <set>

#include "tapestry/autograd/engine.h"
#include "tapestry/core/error.h"
#include "tapestry/distributed/pipeline/internal/local_pipeline.h"
#include "tapestry/distributed/pipeline/internal/rank_pipeline.h"
#include "tapestry/distributed/pipeline/internal/state_dict.h"

namespace tapestry::distributed {

Pipeline::Pipeline(std::vector<Stage> stages, const Options& options)
    : stages_(std::move(stages)),
      options_(options),
      runner_(std::make_unique<LocalPipeline>(stages_, options)) {}
Pipeline::Pipeline(std::shared_ptr<ProcessGroup> group, Stage stage, const Options& options)
    : stages_{std::move(stage)},
      options_(options),
      runner_(std::make_unique<RankPipeline>(std::move(group), stages_, options)) {}
Pipeline::~Pipeline() = default;
Pipeline::Pipeline(Pipeline&&) noexcept = default;
Pipeline& Pipeline::operator=(Pipeline&&) noexcept = default;

Tensor Pipeline::run(const TensorList& inputs, const TensorList& targets, const LossFunction& loss) {
  return runner_->forward_backward(inputs, targets, loss);
}

std::vector<Tensor> Pipeline::evaluate(const TensorList& inputs) { return runner_->evaluate(inputs); }

Tensor Pipeline::the_only(std::vector<Tensor> outputs) {
  if (outputs.empty()) return {};  // only the last rank has outputs
  check(outputs.size() == 1, "[Pipeline] the last stage returns ", outputs.size(),
        " tensors; pipeline.outputs(...) returns them all");
  return std::move(outputs[0]);
}

std::vector<nn::Parameter> Pipeline::parameters() const {
  std::vector<nn::Parameter> found;
  std::set<const void*> seen;
  for (const Stage& stage : stages_)
    for (const auto& [name, slot] : stage.named_parameters())
      if (seen.insert(slot.id()).second) found.push_back(slot);
  return found;
}

void Pipeline::train(bool on) {
  for (const Stage& stage : stages_)
    for (nn::Module& module : stage.modules()) module.train(on);
}

nn::StateDict Pipeline::state_dict() const { return state_dict_of(stages_); }
nn::StateDict Pipeline::whole_state_dict() const { return runner_->whole_state_dict(); }
nn::LoadResult Pipeline::load_state_dict(const nn::StateDict& dict, bool strict) {
  return runner_->load_state_dict(dict, strict);
}

Tensor Pipeline::clip_grad_norm_(double max_norm, double norm_type, bool error_if_nonfinite) {
  return runner_->clip_grad_norm_(parameters(), max_norm, norm_type, error_if_nonfinite);
}

PipelineReport Pipeline::report() const { return runner_->report(); }

void check_grad_mode() {
  check<AutogradError>(grad_enabled(),
                       "[Pipeline] forward_backward() was called with gradients switched off (NoGradGuard, "
                       "InferenceMode); call it outside of the guard, or evaluate with pipeline(inputs)");
}

void check_targets(const TensorList& targets) {
  for (const Tensor& t : targets.tensors)
    check<AutogradError>(!t.defined() || !t.requires_grad(), "[Pipeline] a target of shape ",
                         t.defined() ? t.sizes() : Shape(),
                         " requires gradients, but only inputs and parameters get gradients; detach() it");
}

std::vector<std::int64_t> micro_batch_sizes(std::int64_t samples, int micro_batches, bool exactly) {
  check(!exactly || samples % micro_batches == 0, "[Pipeline] a batch of ", samples,
        " samples is not divisible into ", micro_batches,
        " micro-batches; change one of them, or set .uneven");
  return chunk_sizes(samples, static_cast<std::size_t>(micro_batches));
}

void backward_to_inputs(const TensorList& inputs, const std::vector<bool>& requires_grad,
                        const std::vector<std::vector<Tensor>>& chunks,
                        const std::vector<std::vector<Tensor>>& gradients) {
  std::vector<Tensor> roots, sums;
  {
    const NoGradGuard no_grad;
    for (std::size_t k = 0; k < inputs.tensors.size(); ++k) {
      if (!requires_grad[k]) continue;
      const Tensor& input = inputs.tensors[k];
      std::vector<Tensor> of_input, of_gradient;
      for (std::size_t m = 0; m < chunks.size(); ++m) {
        of_input.push_back(chunks[m][k]);
        of_gradient.push_back(gradients[m][k]);
      }
      const bool whole = inputs.whole[k] || input.dim() == 0;
      const Tensor joined = join_gradients(of_gradient, of_input, whole, input.device());
      if (!joined.defined()) continue;
      roots.push_back(input);
      sums.push_back(joined);
    }
  }
  if (!roots.empty()) autograd::backward(roots, sums);
}

void with_error_context(const std::string& place, const std::function<void()>& f) {
  try {
    f();
  } catch (std::runtime_error& e) {
    // The assignment replaces only the text. The exception keeps its derived type, because only its base
    // class is assigned.
    e = std::runtime_error(concat({e.what(), " (", place, ")"}));
    throw;
  } catch (const std::exception& e) {
    std::throw_with_nested(Error(concat({e.what(), " (", place, ")"})));
  }
}

}  // namespace tapestry::distributed
