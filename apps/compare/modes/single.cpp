// Training on one device: the reference for all other modes.
#include "tapestry/apps/compare/mode.h"
#include "tapestry/apps/compare/models.h"
#include "tapestry/apps/compare/optimizer.h"
#include "tapestry/tapestry.h"

namespace apps::compare {
namespace {

using namespace tapestry;

class Single : public Training {
 public:
  explicit Single(const Workload& w)
      : device_(w.device_type, 0),
        model_(make_model(w, device_)),
        batch_(make_batch(w)),
        optimizer_(make_optimizer(w, model_->parameters())) {
    batch_ = {batch_.inputs.to(device_), batch_.targets.to(device_)};
  }
  Tensor step() override {
    optimizer_->zero_grad();
    Tensor loss;
    {
      const SpanScope span(device_, Activity::forward, "forward");
      loss = loss_of((*model_)(batch_.inputs), batch_.targets);
    }
    {
      const SpanScope span(device_, Activity::backward, "backward");
      loss.backward();
    }
    optimizer_->step();
    return loss.detach();
  }
  std::vector<Device> devices() const override { return {device_}; }

 private:
  Device device_;
  std::shared_ptr<nn::Sequential> model_;
  Batch batch_;
  std::unique_ptr<optim::Optimizer> optimizer_;
};

const Registration registration({.name = "single",
                                 .description = "one device, the whole batch",
                                 .make = [](const Workload& w) { return std::make_unique<Single>(w); }});

}  // namespace
}  // namespace apps::compare
