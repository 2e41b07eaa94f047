// The row `expert` over ranks: expert_parallel.
#include "tapestry/distributed/strategy/internal/row.h"
#include "tapestry/distributed/expert/expert_parallel.h"

namespace tapestry::distributed {
namespace {

class ExpertsOverRanks final : public StrategyLayer {
 public:
  using StrategyLayer::StrategyLayer;
  bool builds_in_parts() const override { return true; }
  bool calls_are_collective() const override { return true; }

  void wrap(nn::Module& model, const ModelParts& parts, LocalModules& local) override {
    StrategyLayer::wrap(model, parts, local);
    divided_.emplace(expert_parallel(model, *context().axis, {.device = device()}));
  }
  void before_forward(const Part& part) override {
    if (part.index == 0) divided_->reset_report();
  }
  // Other ranks' shares depend on where the tokens go, so all bytes count as sent to the next rank.
  LayerReport report() const override {
    LayerReport report{{"expert"}};
    report.exposed_s = divided_->exposed_s();
    add_to_ring(report, *context().axis, divided_->bytes_sent(), "tokens");
    return report;
  }

 private:
  std::optional<ExpertParallel> divided_;
};

// After other axes have divided layers, and before ranks divide what is left or reduce its gradients.
const RowRegistration experts_over_ranks{
    {.axis = "expert",
     .order = 45,
     .computes = Computes::own_samples,
     .copies = true,
     .divides = true,
     .about = "expert_parallel: one process per device, which has some of the experts and exchanges tokens",
     .divide =
         [](const AxisSpec&, StepDivision& step) {
           step.layers = true;
           return true;
         },
     .make = [](const LayerContext& context) -> std::unique_ptr<StrategyLayer> {
       return std::make_unique<ExpertsOverRanks>(context);
     }}};

}  // namespace
}  // namespace tapestry::distributed
