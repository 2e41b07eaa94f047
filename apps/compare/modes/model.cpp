// Model parallelism by hand: the model cut into parts, each on its own device, one at work at a time.
#include <optional>

#include "tapestry/apps/compare/mode.h"
#include "tapestry/apps/compare/models.h"
#include "tapestry/tapestry.h"

namespace apps::compare {
namespace {

using namespace tapestry;

class ModelParallel : public Training {
 public:
  explicit ModelParallel(const Workload& w)
      : devices_(devices_of(w)), parts_(make_parts(w)), batch_(make_batch(w)) {
    std::vector<nn::Parameter> parameters;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      parts_[i]->to(devices_[i]);
      for (const nn::Parameter& p : parts_[i]->parameters()) parameters.push_back(p);
    }
    optimizer_.emplace(std::move(parameters), optim::SGD::Options{.lr = w.lr});
    batch_ = {batch_.images.to(devices_.front()), batch_.labels.to(devices_.back())};
  }
  Tensor step() override {
    optimizer_->zero_grad();
    bytes_sent_ = 0;
    Tensor x = batch_.images, loss;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      if (i > 0) x = moved(x, i);
      const SpanScope span(devices_[i], Activity::forward, "forward");
      x = (*parts_[i])(x);
      if (i + 1 == parts_.size()) loss = cross_entropy(x, batch_.labels);
    }
    span_.emplace(devices_.back(), Activity::backward, "backward");
    loss.backward();
    span_.reset();
    optimizer_->step();
    return loss.detach();
  }
  std::vector<Device> devices() const override { return devices_; }
  std::int64_t bytes_sent() const override { return bytes_sent_; }

 private:
  // x where part i is. All that training needs is x.to(device): the rest is to know when backward passes
  // here.
  Tensor moved(const Tensor& x, std::size_t i) {
    const Device from = devices_[i - 1], to = devices_[i];
    Tensor y;
    {
      const SpanScope span(to, Activity::communication, "activations");
      y = x.to(to);
    }
    bytes_sent_ += 2 * static_cast<std::int64_t>(x.nbytes());  // and the gradient, back
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
  std::vector<std::shared_ptr<nn::Sequential>> parts_;
  Batch batch_;
  std::optional<optim::SGD> optimizer_;
  std::optional<SpanScope> span_;  // of backward, where it is now
  std::int64_t bytes_sent_ = 0;
};

const Registration registration({
    .name = "model",
    .description = "the model cut into parts, one a device, one after another",
    .make = [](const Workload& w) { return std::make_unique<ModelParallel>(w); },
    .splits_the_model = true,
});

}  // namespace
}  // namespace apps::compare
