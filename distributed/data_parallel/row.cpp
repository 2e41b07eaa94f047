// The row `replicate` over devices of one process: DataParallel.
#include "tapestry/core/timeline.h"
#include "tapestry/distributed/data_parallel/data_parallel.h"
#include "tapestry/distributed/data_parallel/internal/devices_layer.h"

namespace tapestry::distributed {
namespace {

bool is_master(const AxisSpec& axis) { return axis.option("mode", "replicated") == "master"; }
std::int64_t bytes_of(const Tensor& t) { return static_cast<std::int64_t>(t.nbytes()); }

class ReplicateOverDevices final : public DevicesLayer {
 public:
  using DevicesLayer::DevicesLayer;

  void wrap(nn::Module& model, const ModelParts& parts, LocalModules&) override {
    attach(model, parts);
    const bool master = is_master(context().spec);
    dp_.emplace(
        model, context().devices,
        DataParallelOptions{.mode = master ? DataParallelMode::master : DataParallelMode::replicated});
    for (const nn::Parameter& p : model.parameters()) parameter_bytes_ += bytes_of(p.replica(0));
  }

  StepLoss gradients(const Part& part, const Batch& batch, double count, optim::GradScaler* scaler) override {
    if (part.index == 0) sent_ = {{"replicate"}};
    for (const Tensor& t : batch.inputs) count_samples(t, true, "batch");
    if (dp_->mode() == DataParallelMode::master && parts().forward) return on_master(batch, count, scaler);
    for (const Tensor& t : batch.targets) count_samples(t, true, "batch");
    const std::int64_t broadcast = dp_->bytes_broadcast();
    StepLoss step = gradients_of(*dp_, batch, count, scaler);
    if (dp_->mode() == DataParallelMode::master) count_master(broadcast);
    else count_replicated(broadcast);
    return step;
  }
  LayerReport report() const override {
    LayerReport report = sent_;
    report.exposed_s = dp_->report().exposed_s;
    return report;
  }

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

  int replicas() const { return static_cast<int>(context().devices.size()); }
  // Counts the samples of a tensor that the first device scatters to the others, or gathers from them.
  void count_samples(const Tensor& t, bool scatters, const char* what) {
    const std::int64_t samples = t.dim() > 0 ? t.size(0) : 0;
    if (samples == 0) return;
    const auto chunks = chunk_sizes(samples, context().devices.size());
    for (int d = 1; d < static_cast<int>(chunks.size()); ++d)
      add_transfer(sent_, scatters ? 0 : d, scatters ? d : 0,
                   bytes_of(t) / samples * static_cast<std::int64_t>(chunks[static_cast<std::size_t>(d)]),
                   what, std::string_view(what) == "gradients" ? "backward" : "forward");
  }
  // Counts what the first device has broadcast since bytes_broadcast() was `before`.
  void count_broadcast(std::int64_t before, const char* what) {
    for (int d = 1; d < replicas(); ++d)
      add_transfer(sent_, 0, d, (dp_->bytes_broadcast() - before) / (replicas() - 1), what, "forward");
  }
  void count_master(std::int64_t broadcast_before) {
    count_broadcast(broadcast_before, "parameters");
    for (int d = 1; d < replicas(); ++d) add_transfer(sent_, d, 0, parameter_bytes_, "gradients", "backward");
  }
  void count_replicated(std::int64_t broadcast_before) {
    count_broadcast(broadcast_before, "buffers");
    for (int d = 0; d < replicas(); ++d)
      add_transfer(sent_, d, (d + 1) % replicas(), all_reduce_bytes(parameter_bytes_, replicas()),
                   "gradients", "backward");
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
    count_master(before);
    for (const Tensor& t : outputs) {
      count_samples(t, false, "activations");
      count_samples(t, true, "gradients");
    }
    return {loss.detach(), std::move(own.sums)};
  }

  std::optional<Wrapper> dp_;
  std::int64_t parameter_bytes_ = 0;
  LayerReport sent_{{"replicate"}};
};

const RowRegistration replicate_over_devices{
    {.axis = "replicate",
     .over_devices = true,
     .order = 70,
     .options = "mode=replicated|master",
     .about = "DataParallel: one process, one replica per device; with mode=master the first device adds "
              "gradients and steps",
     .divide =
         [](const AxisSpec& axis, StepDivision& step) {
           step.sum = is_master(axis) ? StepDivision::Sum::master : StepDivision::Sum::buckets;
           return true;
         },
     .make = [](const LayerContext& context) -> std::unique_ptr<StrategyLayer> {
       return std::make_unique<ReplicateOverDevices>(context);
     }}};

}  // namespace
}  // namespace tapestry::distributed
