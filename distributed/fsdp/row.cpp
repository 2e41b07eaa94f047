// The row `shard` over ranks: fully_shard.
#include "tapestry/distributed/strategy/internal/row.h"
#include "tapestry/distributed/fsdp/fsdp.h"

namespace tapestry::distributed {
namespace {

class ShardOverRanks final : public StrategyLayer {
 public:
  using StrategyLayer::StrategyLayer;
  bool builds_in_parts() const override { return true; }
  bool calls_are_collective() const override { return true; }

  void wrap(nn::Module& model, const ModelParts& parts, LocalModules& local) override {
    StrategyLayer::wrap(model, parts, local);
    const FsdpOptions options{.group = context().axis->group(), .device = device(), .reduce = ReduceOp::sum};
    for (nn::Module* const unit : local.units) fully_shard(*unit, options);
    for (nn::Module* const root : local.roots) sharded_.push_back(fully_shard(*root, options));
  }
  void before_forward(const Part& part) override {
    if (part.index == 0)
      for (const FullyShard& s : sharded_) s.reset_report();
  }
  std::shared_ptr<void> before_backward(const Part& part) override {
    if (part.last) return nullptr;
    auto quiet = std::make_shared<std::vector<NoSync>>();
    for (const FullyShard& s : sharded_) quiet->push_back(s.no_sync());
    return quiet;
  }
  void before_evaluation() override {
    for (const FullyShard& s : sharded_) s.sync_buffers();
  }
  std::shared_ptr<void> unshard() const override {
    auto all = std::make_shared<std::vector<FullyShard::Unsharded>>();
    for (const FullyShard& s : sharded_) all->push_back(s.unshard(/*units_inside=*/true));
    return all;
  }
  LayerReport report() const override {
    LayerReport report{{"shard"}};
    for (const FullyShard& s : sharded_)
      for (const FsdpUnitReport& unit : s.report().units) {
        const std::int64_t bytes =
            gather_bytes(static_cast<std::int64_t>(unit.full_bytes), context().axis->size());
        add_to_ring(report, *context().axis, unit.gathers * bytes, "parameters");
        add_to_ring(report, *context().axis, unit.scatters * bytes, "gradients");
        report.exposed_s += unit.exposed_s;
      }
    return report;
  }

 private:
  std::vector<FullyShard> sharded_;  // of each root
};

const RowRegistration shard_over_ranks{
    {.axis = "shard",
     .order = 60,
     .about = "fully_shard: one process per device, parameters, gradients and optimizer state divided",
     .divide =
         [](const AxisSpec&, StepDivision& step) {
           step.sum = StepDivision::Sum::units;
           return true;
         },
     .make = [](const LayerContext& context) -> std::unique_ptr<StrategyLayer> {
       return std::make_unique<ShardOverRanks>(context);
     }}};

}  // namespace
}  // namespace tapestry::distributed
