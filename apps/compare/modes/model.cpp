// Model parallelism: the model is split into one stage per device, and one stage computes at a time.
#include <optional>

#include "tapestry/apps/compare/mode.h"
#include "tapestry/apps/compare/models.h"
#include "tapestry/apps/compare/optimizer.h"
#include "tapestry/tapestry.h"

namespace apps::compare {
namespace {

using namespace tapestry;

class ModelParallel : public Training {
 public:
  explicit ModelParallel(const Workload& w)
      : devices_(planner::devices_of(w)), stages_(make_stages(w)), batch_(make_batch(w)) {
    std::vector<nn::Parameter> parameters;
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      stages_[i]->to(devices_[i]);
      for (const nn::Parameter& p : stages_[i]->parameters()) parameters.push_back(p);
    }
    optimizer_ = make_optimizer(w, std::move(parameters));
    batch_ = {batch_.inputs.to(devices_.front()), batch_.targets.to(devices_.back())};
  }
  Tensor step() override {
    optimizer_->zero_grad();
    bytes_sent_ = 0;
    Tensor x = batch_.inputs, loss;
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      if (i > 0) x = moved(x, i);
      const SpanScope span(devices_[i], Activity::forward, "forward");
      x = (*stages_[i])(x);
      if (i + 1 == stages_.size()) loss = loss_of(x, batch_.targets);
    }
    x = {};  // frees the outputs, unless backward needs them
    span_.emplace(devices_.back(), Activity::backward, "backward");
    loss.backward();
    span_.reset();
    optimizer_->step();
    return loss.detach();
  }
  std::vector<Device> devices() const override { return devices_; }
  std::int64_t bytes_sent() const override { return bytes_sent_; }

 private:
  // Copies x to the device of stage i. For training alone, x.to(device) is enough. The hooks are only for the
  // timeline: they run in backward and move its span from one device to the next.
  Tensor moved(const Tensor& x, std::size_t i) {
    const Device from = devices_[i - 1], to = devices_[i];
    Tensor y;
    {
      const SpanScope span(to, Activity::communication, "activations");
      y = x.to(to);
    }
    bytes_sent_ += 2 * static_cast<std::int64_t>(x.nbytes());  // x forward, its gradient backward
    if (!x.requires_grad()) return y;
    y.register_hook([this, from](const Tensor& gradient) {
      span_.emplace(from, Activity::communication, "gradient");
      return gradient;
    });
    x.register_hook([this, from](const Tensor& gradient) {
      span_.emplace(from, Activity::backward, "backward");
      return gradient;
    });
    return y;
  }

  std::vector<Device> devices_;
  std::vector<std::shared_ptr<nn::Sequential>> stages_;
  Batch batch_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::optional<SpanScope> span_;  // the span of the device on which backward is running
  std::int64_t bytes_sent_ = 0;
};

const Registration registration({
    .name = "model",
    .description = "the model split into one stage per device, one stage active at a time",
    .make = [](const Workload& w) { return std::make_unique<ModelParallel>(w); },
    .splits_model = true,
});

}  // namespace
}  // namespace apps::compare
