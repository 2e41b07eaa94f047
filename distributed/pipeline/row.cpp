// The row `pipeline` over devices of one process: Pipeline, and, with schedule=sequential, stages that
// compute one after another.
#include <map>
#include <optional>
#include <utility>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/core/timeline.h"
#include "tapestry/distributed/pipeline/pipeline.h"
#include "tapestry/distributed/strategy/internal/row.h"

namespace tapestry::distributed {
namespace {

std::vector<Tensor> tensors_on(const std::vector<Tensor>& tensors, Device device) {
  std::vector<Tensor> all;
  for (const Tensor& t : tensors) all.push_back(t.to(device));
  return all;
}

class Stages : public StrategyLayer {
 public:
  using StrategyLayer::StrategyLayer;
  bool can_call_model() const override { return false; }
  bool takes_whole_step() const override { return true; }

 protected:
  Device last_device() const { return context().devices.back(); }
};

class PipelineOverDevices final : public Stages {
 public:
  using Stages::Stages;

  void wrap(nn::Module& model, const ModelParts& parts) override {
    attach(model, parts);
    const auto chosen = context().spec.options.find("schedule");
    Schedule schedule = Schedule::one_f_one_b;
    for (const Schedule s : {Schedule::gpipe, Schedule::zero_bubble})
      if (chosen != context().spec.options.end() && chosen->second == schedule_name(s)) schedule = s;
    pipeline_.emplace(
        parts.stages(context().devices),
        PipelineOptions{
            .schedule = schedule, .micro_batches = context().parts, .uneven = true, .loss = LossKind::sum});
  }
  StepLoss gradients(const Part&, const Batch& batch, double count, optim::GradScaler* scaler) override {
    StepLoss step;
    const bool scales = scaler && scaler->is_enabled();
    bool is_first = true;
    Tensor scale;
    if (scales) scale = scaler->scale(ones({}, {DType::f32, last_device()}));
    const auto add = [](Tensor& to, const Tensor& t) { to = to.defined() ? to + t : t; };
    // Runs on the worker of the last stage, one micro-batch after another.
    const auto loss = [&](const std::vector<Tensor>& outputs, const std::vector<Tensor>& targets) {
      const Loss own = loss_of(outputs, targets);
      const Tensor part = part_of_mean(own, count);
      const NoGradGuard no_grad_for_sums;
      if (std::exchange(is_first, false)) step.sums.resize(own.sums.size());
      check_sums(step.sums.size(), own.sums.size());
      for (std::size_t k = 0; k < own.sums.size(); ++k) add(step.sums[k], own.sums[k]);
      if (scales) add(step.loss, part.detach());
      return part;
    };
    const Tensor sum = pipeline_->forward_backward(
        batch.inputs, batch.targets,
        [&](const std::vector<Tensor>& outputs, const std::vector<Tensor>& targets) {
          const Tensor part = loss(outputs, targets);
          return scales ? part * scale : part;
        });
    if (!scales) step.loss = sum;
    return step;
  }
  Loss evaluate(const Batch& batch, std::vector<Tensor>* outputs) override {
    std::vector<Tensor> results = pipeline_->outputs(batch.inputs);
    Loss loss = loss_of(results, tensors_on(batch.targets, last_device()));
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
      if (s > 0) add_transfer(report, here - 1, here, activations, "activations");
      if (s + 1 < stages.size()) add_transfer(report, here + 1, here, gradients, "gradients");
      else add_transfer(report, here - 1, here, gradients, "batch");  // the targets
      activations = gradients;
    }
    return report;
  }

 private:
  std::optional<Pipeline> pipeline_;
};

/// Model parallelism: one stage computes at a time, the whole step at once, and the tape records all of them.
class SequentialStages final : public Stages {
 public:
  using Stages::Stages;

  void wrap(nn::Module& model, const ModelParts& parts) override {
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
      if (i + 1 == stages_.size()) own = loss_of(x, tensors_on(batch.targets, last_device()));
    }
    x.clear();  // frees the outputs, unless backward needs them
    const Tensor loss = part_of_mean(own, count);
    own.value = {};
    span_.emplace(last_device(), Activity::backward, "backward");
    (scaler ? scaler->scale(loss) : loss).backward();
    span_.reset();
    return {loss.detach(), std::move(own.sums)};
  }
  Loss evaluate(const Batch& batch, std::vector<Tensor>* outputs) override {
    std::vector<Tensor> x = batch.inputs;
    for (const Stage& stage : stages_) x = stage(tensors_on(x, stage.device()));
    Loss loss = loss_of(x, tensors_on(batch.targets, last_device()));
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
      const SpanScope span(to, Activity::communication, "activations");
      const Tensor y = x.to(to);
      all.push_back(y);
      const int to_stage = static_cast<int>(i);
      add_transfer(sent_, to_stage - 1, to_stage, static_cast<std::int64_t>(x.nbytes()), "activations");
      if (x.requires_grad())
        add_transfer(sent_, to_stage, to_stage - 1, static_cast<std::int64_t>(x.nbytes()), "gradients");
      if (!x.requires_grad() || y.is_same(x)) continue;
      y.register_hook([this, from](const Tensor& gradient) {
        span_.emplace(from, Activity::communication, "gradient");
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
     .splits_model = true,
     .about = "Pipeline: the model in one stage per device, micro-batches; with schedule=sequential one "
              "stage at a time",
     .make = [](const LayerContext& context) -> std::unique_ptr<StrategyLayer> {
       const auto schedule = context.spec.options.find("schedule");
       if (schedule != context.spec.options.end() && schedule->second == "sequential")
         return std::make_unique<SequentialStages>(context);
       return std::make_unique<PipelineOverDevices>(context);
     }}};

}  // namespace
}  // namespace tapestry::distributed
