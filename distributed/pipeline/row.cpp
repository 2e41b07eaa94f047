// The row `pipeline` over devices of one process: Pipeline, and, with schedule=sequential, stages that
// compute one after another.
#include <map>
#include <optional>
#include <utility>

#include "tapestry/core/timeline.h"
#include "tapestry/distributed/pipeline/internal/pipeline_layer.h"

namespace tapestry::distributed {
namespace {

class PipelineOverDevices final : public PipelineLayer {
 public:
  using PipelineLayer::PipelineLayer;

  void wrap(nn::Module& model, const ModelParts& parts, LocalModules&) override {
    attach(model, parts);
    pipeline_.emplace(parts.stages(context().devices), pipeline_options());
  }
  StepLoss gradients(const Part&, const Batch& batch, double count, optim::GradScaler* scaler) override {
    StepLoss step;
    pipeline_->forward_backward(batch.inputs, batch.targets,
                                loss_function(step, count, scaler, context().devices.back()));
    return step;
  }
  Loss evaluate(const Batch& batch, std::vector<Tensor>* outputs) override {
    std::vector<Tensor> results = pipeline_->outputs(batch.inputs);
    Loss loss = loss_of(results, tensors_on(batch.targets, context().devices.back()));
    if (outputs) *outputs = std::move(results);
    return loss;
  }
  LayerReport report() const override {
    LayerReport report{{"pipeline"}};
    // A stage receives activations from the stage before it and their gradients, of equal size, from the one
    // behind it. The first one receives gradients only.
    const std::vector<StageReport> stages = pipeline_->report().stages;
    std::int64_t activations = 0;
    for (std::size_t s = 0; s < stages.size(); ++s) {
      const int here = static_cast<int>(s);
      const std::int64_t gradients = stages[s].bytes_received - activations;
      if (s > 0) add_transfer(report, here - 1, here, activations, "activations", "forward");
      if (s + 1 < stages.size()) add_transfer(report, here + 1, here, gradients, "gradients", "backward");
      else add_transfer(report, here - 1, here, gradients, "batch", "forward");  // the targets
      activations = gradients;
    }
    return report;
  }

 private:
  std::optional<Pipeline> pipeline_;
};

/// Model parallelism: one stage computes at a time, the whole step at once, and the tape records all of them.
class SequentialStages final : public PipelineLayer {
 public:
  using PipelineLayer::PipelineLayer;

  void wrap(nn::Module& model, const ModelParts& parts, LocalModules&) override {
    attach(model, parts);
    stages_ = parts.stages(context().devices);
    check_places();
    for (const Stage& stage : stages_)
      for (nn::Module& module : stage.modules()) module.to(stage.device());
  }
  StepLoss gradients(const Part&, const Batch& batch, double count, optim::GradScaler* scaler) override {
    sent_ = {{"pipeline"}};
    std::vector<Tensor> x = tensors_on(batch.inputs, stages_[0].device());
    Loss own;
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      if (i > 0) x = sent(x, i);
      const SpanScope span(stages_[i].device(), Activity::forward, "forward");
      x = stages_[i](x);
      if (i + 1 == stages_.size()) own = loss_of(x, tensors_on(batch.targets, context().devices.back()));
    }
    x.clear();  // frees the outputs, unless backward needs them
    const Tensor loss = part_of_mean(own, count);
    own.value = {};
    span_.emplace(context().devices.back(), Activity::backward, "backward");
    (scaler ? scaler->scale(loss) : loss).backward();
    span_.reset();
    return {loss.detach(), std::move(own.sums)};
  }
  Loss evaluate(const Batch& batch, std::vector<Tensor>* outputs) override {
    std::vector<Tensor> x = batch.inputs;
    for (const Stage& stage : stages_) x = stage(tensors_on(x, stage.device()));
    Loss loss = loss_of(x, tensors_on(batch.targets, context().devices.back()));
    if (outputs) *outputs = std::move(x);
    return loss;
  }
  LayerReport report() const override { return sent_; }

 private:
  // The last stage that moved a shared tensor to its device would take it away from the others.
  void check_places() const {
    std::map<const void*, Device> places;
    const auto add = [&](const auto& slots, Device device, const char* what, const char* remedy) {
      for (const auto& [name, slot] : slots) {
        const Device first = places.emplace(slot.id(), device).first->second;
        check(first == device, "[strategy] ", what, " ", name, " is in stages on ", first, " and ", device,
              "; with schedule=sequential each is on one device: ", remedy);
      }
    };
    for (const Stage& stage : stages_) {
      add(stage.named_parameters(), stage.device(), "the parameter", "choose schedule=1f1b");
      add(stage.named_buffers(), stage.device(), "the buffer", "give each stage a buffer of its own");
    }
  }

  // Copies tensors to the device of stage i. The hooks are only for the timeline: they run in backward and
  // move its span from one device to the next.
  std::vector<Tensor> sent(const std::vector<Tensor>& tensors, std::size_t i) {
    const Device from = stages_[i - 1].device(), to = stages_[i].device();
    std::vector<Tensor> all;
    for (const Tensor& x : tensors) {
      const auto bytes = static_cast<std::int64_t>(x.nbytes());
      SpanScope span(to, Activity::communication, "activations");
      span.set_subject({.bytes = bytes, .axis = "pipeline"});
      const Tensor y = x.to(to);
      all.push_back(y);
      const int to_stage = static_cast<int>(i);
      add_transfer(sent_, to_stage - 1, to_stage, bytes, "activations", "forward");
      if (x.requires_grad()) add_transfer(sent_, to_stage, to_stage - 1, bytes, "gradients", "backward");
      if (!x.requires_grad() || y.is_same(x)) continue;
      y.register_hook([this, from, bytes](const Tensor& gradient) {
        span_.emplace(from, Activity::communication, "gradient");
        span_->set_subject({.bytes = bytes, .axis = "pipeline"});
        return gradient;
      });
      x.register_hook([this, from](const Tensor& gradient) {
        span_.emplace(from, Activity::backward, "backward");
        return gradient;
      });
    }
    return all;
  }

  std::vector<Stage> stages_;
  std::optional<SpanScope> span_;  // of the device on which backward is running
  LayerReport sent_{{"pipeline"}};
};

const RowRegistration pipeline_over_devices{
    {.axis = "pipeline",
     .over_devices = true,
     .order = 10,
     .options = "schedule=gpipe|1f1b|zero-bubble|sequential",
     .computes = Computes::own_stage,
     .splits_model = true,
     .about = "Pipeline: the model in one stage per device, micro-batches; with schedule=sequential one "
              "stage at a time",
     .divide =
         [](const AxisSpec& axis, StepDivision& step) {
           step.schedule = axis.option("schedule", schedule_name(Schedule::one_f_one_b));
           return true;
         },
     .make = [](const LayerContext& context) -> std::unique_ptr<StrategyLayer> {
       const auto schedule = context.spec.options.find("schedule");
       if (schedule != context.spec.options.end() && schedule->second == "sequential")
         return std::make_unique<SequentialStages>(context);
       return std::make_unique<PipelineOverDevices>(context);
     }}};

}  // namespace
}  // namespace tapestry::distributed
