// The row `tensor` over ranks: tensor_parallel.
#include "tapestry/distributed/strategy/internal/row.h"
#include "tapestry/distributed/placement/check.h"
#include "tapestry/distributed/tensor/tensor_parallel.h"

namespace tapestry::distributed {
namespace {

bool divides_sequence(const AxisSpec& axis) { return axis.option("sequence", "0") == "1"; }
std::string chunks_of(const AxisSpec& axis) { return axis.option("chunks", "1"); }

class TensorOverRanks final : public StrategyLayer {
 public:
  explicit TensorOverRanks(const LayerContext& context) : StrategyLayer(context) {
    check(divides_sequence(context.spec) || chunks_of(context.spec) == "1", "[strategy] ",
          to_string({context.spec}),
          ": chunks are parts of a sequence that the ranks divide; write sequence=1 beside chunks");
  }
  bool builds_in_parts() const override { return true; }
  bool calls_are_collective() const override { return true; }

  void wrap(nn::Module& model, const ModelParts& parts, LocalModules& local) override {
    StrategyLayer::wrap(model, parts, local);
    const Axis& axis = *context().axis;
    const TensorPlan plan =
        parts.tensor_plan.rules.empty() ? tensor_plan(model, axis.size()) : parts.tensor_plan;
    divided_.emplace(tensor_parallel(model, axis, plan,
                                     {.sequence = divides_sequence(context().spec),
                                      .chunks = std::stoi(chunks_of(context().spec)),
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
           if (divides_sequence(axis)) step.options = "sequence=1";
           return chunks_of(axis) == "1";  // no predictor knows what chunks hide
         },
     .make = [](const LayerContext& context) -> std::unique_ptr<StrategyLayer> {
       return std::make_unique<TensorOverRanks>(context);
     }}};

}  // namespace
}  // namespace tapestry::distributed
