// The row `replicate` over devices of one process: DataParallel.
#include "tapestry/distributed/strategy/internal/row.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/core/timeline.h"
#include "tapestry/distributed/data_parallel/data_parallel.h"

namespace tapestry::distributed {
namespace {

std::int64_t bytes_of(const Tensor& t) { return static_cast<std::int64_t>(t.nbytes()); }

class ReplicateOverDevices final : public StrategyLayer {
 public:
  using StrategyLayer::StrategyLayer;

  void wrap(nn::Module& model, const ModelParts& parts) override {
    attach(model, parts);
    const auto mode = context().spec.options.find("mode");
    const bool master = mode != context().spec.options.end() && mode->second == "master";
    dp_.emplace(
        model, context().devices,
        DataParallelOptions{.mode = master ? DataParallelMode::master : DataParallelMode::replicated});
    for (const nn::Parameter& p : model.parameters()) parameter_bytes_ += bytes_of(p.replica(0));
  }

  StepLoss gradients(const Part& part, const Batch& batch, double count, optim::GradScaler* scaler) override {
    if (part.index == 0) bytes_ = 0;
    for (const auto* list : {&batch.inputs, &batch.targets})
      for (const Tensor& t : *list) bytes_ += scattered(t);
    if (dp_->mode() == DataParallelMode::master && parts().forward) return on_master(batch, count, scaler);
    const std::int64_t n = replicas(), broadcast = dp_->bytes_broadcast();
    auto [loss, sums] = dp_->loss(
        std::tie(batch.inputs, batch.targets),
        [&](const std::vector<Tensor>& inputs, const std::vector<Tensor>& targets) {
          Loss own = compute({inputs, targets});
          return std::pair(part_of_mean(own, count), std::move(own.sums));
        },
        LossKind::sum);
    (scaler ? scaler->scale(loss) : loss).backward();
    for (Tensor& t : sums) t = t.sum();
    bytes_ += dp_->bytes_broadcast() - broadcast +
              (dp_->mode() == DataParallelMode::master
                   ? (n - 1) * parameter_bytes_
                   : n * all_reduce_bytes(parameter_bytes_, static_cast<int>(n)));
    return {loss.detach(), std::move(sums)};
  }
  AxisReport report() const override { return {"replicate", bytes_, dp_->report().exposed_s}; }

 private:
  // Calls ModelParts::forward on the replicas.
  struct Forward : nn::Callable<Forward> {
    const ModelParts* parts = nullptr;
    std::vector<Tensor> forward(const std::vector<Tensor>& inputs) { return parts->forward(inputs); }
    using Module::forward;
  };
  struct Wrapper : DataParallelBase {
    Wrapper(nn::Module& model, const std::vector<Device>& devices, const DataParallelOptions& options)
        : DataParallelBase(model, devices, options) {}
    std::vector<Tensor> outputs(Forward& forward, const std::vector<Tensor>& inputs) {
      return call(forward, inputs);
    }
  };

  std::int64_t replicas() const { return static_cast<std::int64_t>(context().devices.size()); }
  // The bytes of a scattered tensor that leave the first device.
  std::int64_t scattered(const Tensor& t) const {
    const std::int64_t samples = t.dim() > 0 ? t.size(0) : 0;
    if (samples == 0) return 0;
    return bytes_of(t) / samples * (samples - chunk_sizes(samples, context().devices.size())[0]);
  }

  // The outputs are gathered on the first device, which computes the loss.
  StepLoss on_master(const Batch& batch, double count, optim::GradScaler* scaler) {
    const std::int64_t before = dp_->bytes_broadcast();
    Forward forward;
    forward.parts = &parts();
    const std::vector<Tensor> outputs = dp_->outputs(forward, batch.inputs);
    Loss own;
    {
      const SpanScope span(device(), Activity::forward, "loss");
      own = loss_of(outputs, batch.targets);
    }
    const Tensor loss = part_of_mean(own, count);
    own.value = {};
    (scaler ? scaler->scale(loss) : loss).backward();
    bytes_ += dp_->bytes_broadcast() - before + (replicas() - 1) * parameter_bytes_;
    for (const Tensor& t : outputs) bytes_ += 2 * scattered(t);  // forward, and their gradients backward
    for (const Tensor& t : batch.targets) bytes_ -= scattered(t);
    return {loss.detach(), std::move(own.sums)};
  }

  std::optional<Wrapper> dp_;
  std::int64_t parameter_bytes_ = 0, bytes_ = 0;
};

const RowRegistration replicate_over_devices{
    {.axis = "replicate",
     .over_devices = true,
     .order = 70,
     .options = "mode=replicated|master",
     .about = "DataParallel: one process, one replica per device; with mode=master the first device adds gradients and steps", .make = [](const LayerContext& context) -> std::unique_ptr<StrategyLayer> {
       return std::make_unique<ReplicateOverDevices>(context);
     }}};

}  // namespace
}  // namespace tapestry::distributed
