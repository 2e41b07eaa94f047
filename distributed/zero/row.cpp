// The option `zero` of the axis `replicate` over ranks: ZeroRedundancyOptimizer.
#include "tapestry/distributed/strategy/internal/row.h"

namespace tapestry::distributed {
namespace {

int stage_of(const AxisSpec& axis) { return axis.option("zero", "") == "1" ? 1 : 2; }

class ZeroDivision final : public StrategyLayer {
 public:
  using StrategyLayer::StrategyLayer;

  OptimizerDivision optimizer_division() const override {
    OptimizerDivision division{context().axis->group(), stage_of(context().spec)};
    // The ranks that hold the same experts divide the optimizer state of these experts among each other.
    if (const auto& copies = context().copies_of_parts) {
      for (const nn::Parameter& p : model().parameters())
        if (context().is_part(p)) division.parts.push_back(p);
      if (!division.parts.empty()) division.parts_group = copies->group();
    }
    return division;
  }
  // The updated parameters are gathered.
  LayerReport report() const override { return reports()[0]; }
  std::vector<LayerReport> reports() const override {
    std::vector<LayerReport> all{gathered(*context().axis, false)};
    if (const auto& copies = context().copies_of_parts) all.push_back(gathered(*copies, true));
    return all;
  }

 private:
  LayerReport gathered(const Axis& axis, bool of_parts) const {
    std::int64_t bytes = 0;
    for (const nn::Parameter& p : model().parameters())
      if (p->requires_grad() && context().is_part(p) == of_parts)
        bytes += static_cast<std::int64_t>(p->nbytes());
    LayerReport report{{axis.name()}};
    add_to_ring(report, axis, gather_bytes(bytes, axis.size()), "parameters", "update");
    return report;
  }
};

const RowRegistration zero_division{
    {.axis = "replicate",
     .option = "zero",
     .order = 80,
     .options = "zero=1|2",
     .excludes = "shard",
     .instead = "shard divides the optimizer's state already: leave zero out",
     .about = "ZeroRedundancyOptimizer: the optimizer's state divided, with zero=2 gradients too",
     .divide =
         [](const AxisSpec& axis, StepDivision& step) {
           step.zero = stage_of(axis);
           return true;
         },
     .make = [](const LayerContext& context) -> std::unique_ptr<StrategyLayer> {
       return std::make_unique<ZeroDivision>(context);
     }}};

}  // namespace
}  // namespace tapestry::distributed
