#include "tapestry/distributed/pipeline/pipeline.h"

#include <set>

#include "tapestry/core/error.h"
#include "tapestry/distributed/pipeline/internal/local_pipeline.h"

namespace tapestry::distributed {

Pipeline::Pipeline(std::vector<Stage> stages, const Options& options)
    : stages_(std::move(stages)),
      options_(options),
      runner_(std::make_unique<LocalPipeline>(stages_, options)) {}
Pipeline::~Pipeline() = default;
Pipeline::Pipeline(Pipeline&&) noexcept = default;
Pipeline& Pipeline::operator=(Pipeline&&) noexcept = default;

Tensor Pipeline::run(const TensorList& inputs, const TensorList& targets, const LossFunction& loss) {
  check<AutogradError>(grad_enabled(),
                       "[Pipeline] forward_backward() where gradients are switched off (NoGradGuard, "
                       "InferenceMode); call it outside, or evaluate with pipeline(inputs)");
  return runner_->forward_backward(inputs, targets, loss);
}

std::vector<Tensor> Pipeline::evaluate(const TensorList& inputs) { return runner_->evaluate(inputs); }

Tensor Pipeline::the_only(std::vector<Tensor> outputs) {
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

PipelineReport Pipeline::report() const { return runner_->report(); }

std::vector<std::int64_t> micro_batch_shares(std::int64_t samples, int micro_batches, bool exactly) {
  check(!exactly || samples % micro_batches == 0, "[Pipeline] a batch of ", samples, " samples and ",
        micro_batches, " micro-batches, which do not divide it; change one of them, or set .uneven");
  return shares_of(samples, static_cast<std::size_t>(micro_batches));
}

void named_in_errors(const std::string& place, const std::function<void()>& f) {
  try {
    f();
  } catch (std::runtime_error& e) {
    // The text is assigned in the exception object itself, which keeps its type.
    e = std::runtime_error(concat({e.what(), " (", place, ")"}));
    throw;
  } catch (const std::exception& e) {
    std::throw_with_nested(Error(concat({e.what(), " (", place, ")"})));
  }
}

}  // namespace tapestry::distributed
