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

  void wrap(nn::Module& model, const ModelParts& parts) override {
    const std::vector<nn::Parameter> all = model.parameters();
    const bool is_built =
        std::none_of(all.begin(), all.end(), [](const auto& p) { return p->device().is_meta(); });
    if (is_built) StrategyLayer::wrap(model, parts);
    else attach(model, parts);
    const FsdpOptions options{.group = context().axis->group(), .device = device(), .reduce = ReduceOp::sum};
    for (nn::Module* const unit : parts.units) fully_shard(*unit, options);
    sharded_.emplace(fully_shard(model, options));
  }
  StepLoss gradients(const Part& part, const Batch& batch, double count, optim::GradScaler* scaler) override {
    if (part.index == 0) sharded_->reset_report();
    std::optional<NoSync> quiet;
    if (!part.last) quiet.emplace(sharded_->no_sync());
    return StrategyLayer::gradients(part, batch, count, scaler);
  }
  void before_evaluation() override { sharded_->sync_buffers(); }
  std::shared_ptr<void> unshard() const override {
    return std::make_shared<FullyShard::Unsharded>(sharded_->unshard(/*units_inside=*/true));
  }
  LayerReport report() const override {
    LayerReport report{{"shard"}};
    for (const FsdpUnitReport& unit : sharded_->report().units) {
      const std::int64_t bytes =
          gather_bytes(static_cast<std::int64_t>(unit.full_bytes), context().axis->size());
      add_to_ring(report, *context().axis, unit.gathers * bytes, "parameters");
      add_to_ring(report, *context().axis, unit.scatters * bytes, "gradients");
      report.exposed_s += unit.exposed_s;
    }
    return report;
  }

 private:
  std::optional<FullyShard> sharded_;
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
