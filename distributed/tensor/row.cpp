// The row `tensor` over ranks: tensor_parallel.
#include "tapestry/distributed/strategy/internal/row.h"
#include "tapestry/distributed/placement/check.h"
#include "tapestry/distributed/tensor/tensor_parallel.h"

namespace tapestry::distributed {
namespace {

class TensorOverRanks final : public StrategyLayer {
 public:
  using StrategyLayer::StrategyLayer;
  bool builds_in_parts() const override { return true; }
  bool calls_are_collective() const override { return true; }

  void wrap(nn::Module& model, const ModelParts& parts, LocalModules& local) override {
    StrategyLayer::wrap(model, parts, local);
    const Axis& axis = *context().axis;
    const TensorPlan plan =
        parts.tensor_plan.rules.empty() ? tensor_plan(model, axis.size()) : parts.tensor_plan;
    divided_.emplace(tensor_parallel(model, axis, plan,
                                     {.sequence = context().spec.option("sequence", "0") == "1",
                                      .chunks = std::stoi(context().spec.option("chunks", "0")),
                                      .device = device()}));
  }
  void before_forward(const Part& part) override {
    if (part.index > 0) return;
    divided_->reset_report();
    backward_bytes_ = 0;
  }
  std::shared_ptr<void> before_backward(const Part&) override {
    const std::int64_t before = divided_->bytes_sent();
    return {this, [before](TensorOverRanks* t) { t->backward_bytes_ += t->divided_->bytes_sent() - before; }};
  }
  // A stage of a pipeline calls modules inside of the model, and never the model.
  std::shared_ptr<void> around_stage() override {
    place_parameters(model(), *context().axis);
    return divided_->call();
  }
  LayerReport report() const override {
    LayerReport report{{"tensor"}};
    const ConversionTraffic::Counts sent = divided_->sent();
    report.exposed_s = sent.exposed_s;
    add_to_ring(report, *context().axis, sent.bytes() - backward_bytes_, "activations", "forward");
    add_to_ring(report, *context().axis, backward_bytes_, "activations", "backward");
    return report;
  }

 private:
  std::optional<TensorParallel> divided_;
  std::int64_t backward_bytes_ = 0;  // the part of what was sent that backward sent
};

// After the stages of a pipeline, and before other ranks divide what is left or reduce its gradients.
const RowRegistration tensor_over_ranks{
    {.axis = "tensor",
     .order = 30,
     .options = "sequence=0|1 chunks=1|2|4|8|16",
     .computes = Computes::own_elements,
     .about = "tensor_parallel: one process per device, the layers divided; with sequence=1 also the "
              "activations between them",
     .divide =
         [](const AxisSpec& axis, StepDivision& step) {
           step.layers = true;
           if (axis.option("sequence", "0") == "1") step.options = "sequence=1";
           return true;
         },
     .make = [](const LayerContext& context) -> std::unique_ptr<StrategyLayer> {
       return std::make_unique<TensorOverRanks>(context);
     }}};

}  // namespace
}  // namespace tapestry::distributed
