// The row `shard` over ranks: fully_shard.
#include <algorithm>

#include "tapestry/distributed/fsdp/fsdp.h"
#include "tapestry/distributed/fsdp/internal/shard_module.h"
#include "tapestry/distributed/fsdp/internal/sharded_parameter.h"
#include "tapestry/distributed/strategy/internal/row.h"
#include "tapestry/nn/internal/stored.h"
#include "tapestry/nn/materialize.h"

namespace tapestry::distributed {
namespace {

bool offloads(const AxisSpec& axis) { return axis.option("offload", "none") == "host"; }

class ShardOverRanks final : public StrategyLayer {
 public:
  using StrategyLayer::StrategyLayer;
  bool builds_in_parts() const override { return true; }
  bool calls_are_collective() const override { return true; }

  void wrap(nn::Module& model, const ModelParts& parts, LocalModules& local) override {
    StrategyLayer::wrap(model, parts, local);
    const std::optional<Axis>& copies = context().copies;
    const std::shared_ptr<ProcessGroup>& group = context().axis->group();
    FsdpOptions options{.group = group,
                        .replicate_group = copies ? copies->group() : nullptr,
                        .device = device(),
                        .offload = offloads(context().spec),
                        .reduce = ReduceOp::sum};
    shard_parts(local, options);
    for (nn::Module* const unit : local.units)
      if (!has_parts(unit->path())) fully_shard(*unit, options);
    if (!is_pipeline()) {
      sharded_.push_back(fully_shard(model, options));
      return;
    }
    // A stage of a pipeline computes other micro-batches between forward and backward of one.
    options.reshard_after_forward = true;
    std::vector<nn::Module*> roots{&stage_};
    roots.insert(roots.end(), local.roots.begin(), local.roots.end());
    sharded_ = fully_shard_together(roots, options);
    for (std::size_t i = 0; i < roots.size(); ++i)
      if (std::count(parts.units.begin(), parts.units.end(), roots[i]) == 0)
        used_by_stage_.push_back(sharded_[i]);
    // All ranks sum over the same groups, whether they have elements of a parameter or not.
    for (auto [name, slot] : model.named_parameters())
      if (nn::is_of_other_stage(slot))
        slot.set_layout(std::make_shared<ShardedParameter>(name, slot, std::vector{group}));
  }
  void before_forward(const Part& part) override {
    if (part.index > 0) return;
    sharded_[0].discard_unreduced();  // of a step that ended with an exception
    sharded_[0].reset_report();
    if (gathers_once_) sharded_[0].keep_full();
  }
  std::shared_ptr<void> before_backward(const Part& part) override {
    if (part.last) return nullptr;
    const bool each = context().spec.option("reduce", "step") == "part";
    return std::make_shared<NoSync>(each ? sharded_[0].no_all_reduce() : sharded_[0].no_sync());
  }
  void after_backward(const Part& part) override {
    if (part.last) sharded_[0].end_step();
  }
  // A stage is a function, which may use a parameter without a call of the module that has it.
  std::shared_ptr<void> around_stage() override {
    auto all = std::make_shared<std::vector<FullyShard::Unsharded>>();
    for (const FullyShard& s : used_by_stage_) all->push_back(s.unshard());
    return all;
  }
  void before_evaluation() override {
    sharded_[0].keep_full(false);  // of a step that ended with an exception
    for (const FullyShard& s : sharded_) s.sync_buffers();
  }
  std::shared_ptr<void> unshard() const override {
    sharded_[0].keep_full(false);  // of a step that ended with an exception
    auto all = std::make_shared<std::vector<FullyShard::Unsharded>>();
    for (const FullyShard& s : sharded_) all->push_back(s.unshard(/*units_inside=*/true));
    return all;
  }
  bool is_pipeline() const { return context().other("pipeline") != nullptr; }
  LayerReport report() const override {
    LayerReport report{{"shard"}};
    for (const FsdpUnitReport& unit : sharded_[0].report().units) {
      const std::int64_t bytes =
          gather_bytes(static_cast<std::int64_t>(unit.full_bytes), context().axis->size());
      const std::int64_t forward = unit.gathers - unit.backward_gathers;
      add_to_ring(report, *context().axis, forward * bytes, "parameters", "forward");
      add_to_ring(report, *context().axis, unit.backward_gathers * bytes, "parameters", "backward");
      add_to_ring(report, *context().axis, unit.scatters * bytes, "gradients", "backward");
      report.exposed_s += unit.exposed_s;
    }
    return report;
  }
  std::vector<LayerReport> reports() const override {
    std::vector<LayerReport> all{report()};
    for (const bool of_parts : {false, true}) {
      const std::optional<Axis>& copies = of_parts ? context().copies_of_parts : context().copies;
      if (!copies) continue;
      LayerReport across{{copies->name()}};
      for (const FsdpUnitReport& unit : sharded_[0].report().units) {
        if (has_parts(unit.name) != of_parts) continue;
        add_to_ring(across, *copies, all_reduce_bytes(unit.all_reduced_bytes, copies->size()), "gradients",
                    "backward");
        across.exposed_s += unit.all_reduce_exposed_s;
      }
      all.push_back(std::move(across));
    }
    return all;
  }

 private:
  // Shards the modules whose own parameters other axes divide: their copies are along fewer axes.
  void shard_parts(const LocalModules& local, const FsdpOptions& options) {
    if (context().dividing.empty()) return;
    FsdpOptions own = options;
    own.replicate_group = context().copies_of_parts ? context().copies_of_parts->group() : nullptr;
    own.own_replicate_group = true;
    for (nn::Module* const root : local.roots)
      for (const auto& [path, module] : root->named_modules()) {
        const nn::NamedSlots own_slots = own_parameters(*module);
        if (own_slots.empty() || !std::all_of(own_slots.begin(), own_slots.end(),
                                              [&](const auto& p) { return context().is_part(p.second); }))
          continue;
        fully_shard(*module, own);
        parts_.push_back(module->path());
      }
  }
  static nn::NamedSlots own_parameters(const nn::Module& module) {
    nn::NamedSlots own;
    for (const auto& [name, slot] : module.named_parameters())
      if (name.find('.') == std::string::npos) own.emplace_back(name, slot);
    return own;
  }
  bool has_parts(const std::string& unit) const { return std::count(parts_.begin(), parts_.end(), unit) > 0; }

  const bool gathers_once_ = context().spec.option("gather", is_pipeline() ? "step" : "part") == "step";
  nn::Module stage_;                 // has no parameters; its unit is around the calls of a stage's modules
  std::vector<FullyShard> sharded_;  // the model, or stage_ and the modules of the stage, which are one model
  std::vector<FullyShard> used_by_stage_;  // stage_, and modules that are no units of ModelParts
  std::vector<std::string> parts_;         // units of parameters that other axes divide
};

const RowRegistration shard_over_ranks{
    {.axis = "shard",
     .order = 60,
     .options = "gather=part|step reduce=step|part offload=none|host",
     .about = "fully_shard: one process per device, parameters, gradients and optimizer state divided",
     .divide =
         [](const AxisSpec& axis, StepDivision& step) {
           step.sum = StepDivision::Sum::units;
           step.keeps_whole = axis.option("gather", "step") == "step";
           return !offloads(axis);
         },
     .make = [](const LayerContext& context) -> std::unique_ptr<StrategyLayer> {
       return std::make_unique<ShardOverRanks>(context);
     }}};

}  // namespace
}  // namespace tapestry::distributed
