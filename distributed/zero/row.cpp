// The option `zero` of the axis `replicate` over ranks: ZeroRedundancyOptimizer.
#include "tapestry/distributed/strategy/internal/row.h"

namespace tapestry::distributed {
namespace {

int stage_of(const AxisSpec& axis) { return axis.option("zero", "") == "1" ? 1 : 2; }

class ZeroDivision final : public StrategyLayer {
 public:
  using StrategyLayer::StrategyLayer;

  OptimizerDivision optimizer_division() const override {
    return {context().axis->group(), stage_of(context().spec)};
  }
  // The updated parameters are gathered.
  LayerReport report() const override {
    std::int64_t bytes = 0;
    for (const nn::Parameter& p : model().parameters())
      if (p->requires_grad()) bytes += static_cast<std::int64_t>(p->nbytes());
    LayerReport report{{context().axis->name()}};
    add_to_ring(report, *context().axis, gather_bytes(bytes, context().axis->size()), "parameters", "update");
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
     .excludes_divided = "the optimizer's states of divided and of copied parameters would be those of "
                         "different ranks; use the axis shard",
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
