#pragma once
// What the rows `pipeline` share.
#include <vector>

#include "tapestry/distributed/pipeline/pipeline.h"
#include "tapestry/distributed/strategy/internal/row.h"

namespace tapestry::distributed {

class PipelineLayer : public StrategyLayer {
 public:
  using StrategyLayer::StrategyLayer;
  bool can_call_model() const override { return false; }
  bool takes_whole_step() const override { return true; }

 protected:
  /// What the strategy says: the schedule, and a micro-batch for each part of a step.
  PipelineOptions pipeline_options() const;
  /// The loss of a micro-batch, on the device `last` of the last stage. It adds the loss and its sums to
  /// `step`, which must exist while the pipeline runs. Every process that steps an optimizer calls this
  /// function, because it tells the scaler that there are gradients to divide.
  Pipeline::LossFunction loss_function(StepLoss& step, double count, optim::GradScaler* scaler, Device last);
};

std::vector<Tensor> tensors_on(const std::vector<Tensor>& tensors, Device device);

}  // namespace tapestry::distributed
