// The row `shard` over devices of one process: ShardedDataParallel.
#include "tapestry/distributed/fsdp/sharded_data_parallel.h"

#include <limits>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/distributed/data_parallel/internal/devices_layer.h"

namespace tapestry::distributed {
namespace {

class ShardOverDevices final : public DevicesLayer {
 public:
  using DevicesLayer::DevicesLayer;
  bool builds_in_parts() const override { return true; }
  bool can_call_model() const override { return false; }

  void wrap(nn::Module& model, const ModelParts& parts, LocalModules&) override {
    attach(model, parts);
    sharded_.emplace(model, context().devices, ShardedDataParallelOptions{.units = parts.units});
  }
  StepLoss gradients(const Part& part, const Batch& batch, double count, optim::GradScaler* scaler) override {
    if (part.index == 0) {
      sharded_->discard_unreduced();  // of a step that ended with an exception
      sharded_->reset_report();
    }
    std::optional<NoSync> quiet;
    if (!part.last) quiet.emplace(sharded_->no_sync());
    return gradients_of(*sharded_, batch, count, scaler);
  }
  Loss evaluate(const Batch& batch, std::vector<Tensor>* outputs) override {
    using Tensors = std::vector<Tensor>;
    // The counts are known after the call, and differ between devices.
    auto [loss, counts, sums, all] = sharded_->loss(
        std::tie(batch.inputs, batch.targets),
        [&](const Tensors& inputs, const Tensors& targets) {
          Tensors results;
          Loss own = compute({inputs, targets}, outputs ? &results : nullptr);
          const Tensor count = full({}, own.count, {DType::f64, kCPU});
          return std::tuple(own.kind == LossKind::sum ? own.value : own.value * own.count, count,
                            std::move(own.sums), std::move(results));
        },
        LossKind::sum);
    if (outputs) *outputs = std::move(all);
    for (Tensor& t : sums) t = t.sum();
    return {loss, counts.sum().item(), LossKind::sum, std::move(sums)};
  }
  // A device without samples counts those of the first again.
  double take_counted() override { return std::numeric_limits<double>::quiet_NaN(); }
  std::shared_ptr<void> unshard() const override {
    return std::shared_ptr<void>(new ShardedDataParallelBase::Unsharded(sharded_->unshard()));
  }
  LayerReport report() const override {
    LayerReport report{{"shard"}};
    const int n = static_cast<int>(context().devices.size());
    for (int replica = 0; replica < n; ++replica)
      for (const FsdpUnitReport& unit : sharded_->report(replica).units) {
        const std::int64_t bytes = gather_bytes(static_cast<std::int64_t>(unit.full_bytes), n);
        const auto sends = [&](std::int64_t times, const char* what, const char* phase) {
          add_transfer(report, replica, (replica + 1) % n, times * bytes, what, phase);
        };
        sends(unit.gathers - unit.backward_gathers, "parameters", "forward");
        sends(unit.backward_gathers, "parameters", "backward");
        sends(unit.scatters, "gradients", "backward");
        report.exposed_s += unit.exposed_s / n;
      }
    return report;
  }

 private:
  std::optional<ShardedDataParallel<nn::Module>> sharded_;
};

const RowRegistration shard_over_devices{
    {.axis = "shard",
     .over_devices = true,
     .order = 60,
     .about = "ShardedDataParallel: one process, parameters, gradients and optimizer state divided",
     .make = [](const LayerContext& context) -> std::unique_ptr<StrategyLayer> {
       return std::make_unique<ShardOverDevices>(context);
     }}};

}  // namespace
}  // namespace tapestry::distributed
