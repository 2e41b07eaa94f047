#include "tapestry/distributed/pipeline/internal/pipeline_layer.h"

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"

namespace tapestry::distributed {

std::vector<Tensor> tensors_on(const std::vector<Tensor>& tensors, Device device) {
  std::vector<Tensor> all;
  for (const Tensor& t : tensors) all.push_back(t.to(device));
  return all;
}

PipelineOptions PipelineLayer::pipeline_options() const {
  PipelineOptions options{.micro_batches = context().parts, .uneven = true, .loss = LossKind::sum};
  const auto chosen = context().spec.options.find("schedule");
  for (const Schedule s : {Schedule::gpipe, Schedule::zero_bubble})
    if (chosen != context().spec.options.end() && chosen->second == schedule_name(s)) options.schedule = s;
  return options;
}

Pipeline::LossFunction PipelineLayer::loss_function(StepLoss& step, double count, optim::GradScaler* scaler,
                                                    Device last) {
  Tensor scale;
  if (scaler && scaler->is_enabled()) scale = scaler->scale(ones({}, {DType::f32, last}));
  // Runs on one thread, one micro-batch after another.
  return [=, this, &step](const std::vector<Tensor>& outputs, const std::vector<Tensor>& targets) {
    const Loss own = loss_of(outputs, targets);
    const Tensor part = part_of_mean(own, count);
    {
      const NoGradGuard no_grad_for_sums;
      const bool is_first = !step.loss.defined();
      if (is_first) step.sums.resize(own.sums.size());
      check_sums(step.sums.size(), own.sums.size());
      step.loss = is_first ? part.detach() : step.loss + part;
      for (std::size_t k = 0; k < own.sums.size(); ++k)
        step.sums[k] = is_first ? own.sums[k] : step.sums[k] + own.sums[k];
    }
    return scale.defined() ? part * scale : part;
  };
}

}  // namespace tapestry::distributed
