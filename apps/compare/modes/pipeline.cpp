// Pipeline parallelism: the model is split into one stage per device, and stages compute different
// micro-batches at the same time.
#include "tapestry/apps/compare/mode.h"
#include "tapestry/apps/compare/models.h"
#include "tapestry/apps/compare/optimizer.h"
#include "tapestry/tapestry.h"

namespace apps::compare {
namespace {

using namespace tapestry;
using distributed::Schedule;

class PipelineTraining : public Training {
 public:
  PipelineTraining(const Workload& w, Schedule schedule)
      : devices_(planner::devices_of(w)),
        modules_(make_stages(w)),
        pipeline_(stages(), {.schedule = schedule, .micro_batches = w.micro_batches, .uneven = true}),
        batch_(make_batch(w)),
        optimizer_(make_optimizer(w, pipeline_.parameters())) {
    batch_ = {batch_.inputs.to(devices_.front()), batch_.targets.to(devices_.back())};
  }
  Tensor step() override {
    optimizer_->zero_grad();
    const Tensor loss = pipeline_.forward_backward(batch_.inputs, batch_.targets, loss_of);
    optimizer_->step();
    return loss;
  }
  std::vector<Device> devices() const override { return devices_; }
  std::int64_t bytes_sent() const override {
    std::int64_t bytes = 0;
    for (const distributed::StageReport& stage : pipeline_.report().stages) bytes += stage.bytes_received;
    return bytes;
  }

 private:
  std::vector<distributed::Stage> stages() const {
    std::vector<distributed::Stage> all;
    for (std::size_t i = 0; i < modules_.size(); ++i) all.emplace_back(*modules_[i], devices_[i]);
    return all;
  }

  std::vector<Device> devices_;
  std::vector<std::shared_ptr<nn::Sequential>> modules_;
  distributed::Pipeline pipeline_;
  Batch batch_;
  std::unique_ptr<optim::Optimizer> optimizer_;
};

const Registration gpipe({
    .name = "pipeline-gpipe",
    .description = "Pipeline: all forwards, then all backwards",
    .make = [](const Workload& w) { return std::make_unique<PipelineTraining>(w, Schedule::gpipe); },
    .splits_model = true,
});
const Registration one_f_one_b({
    .name = "pipeline-1f1b",
    .description = "Pipeline: each backward runs as early as possible, which keeps fewer activations",
    .make = [](const Workload& w) { return std::make_unique<PipelineTraining>(w, Schedule::one_f_one_b); },
    .splits_model = true,
});

const Registration zero_bubble({
    .name = "pipeline-zero-bubble",
    .description = "Pipeline: 1F1B that defers weight gradients until a device would be idle",
    .make = [](const Workload& w) { return std::make_unique<PipelineTraining>(w, Schedule::zero_bubble); },
    .splits_model = true,
});

}  // namespace
}  // namespace apps::compare
