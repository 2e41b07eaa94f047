// DataParallel with both of its strategies.
#include "tapestry/apps/compare/mode.h"
#include "tapestry/apps/compare/models.h"
#include "tapestry/apps/compare/optimizer.h"
#include "tapestry/tapestry.h"

namespace apps::compare {
namespace {

using namespace tapestry;
using distributed::Strategy;

std::int64_t bytes_of(const Tensor& t) { return static_cast<std::int64_t>(t.nbytes()); }

class DataParallelTraining : public Training {
 public:
  DataParallelTraining(const Workload& w, Strategy strategy)
      : model_(make_model(w, {w.device_type, 0})),
        dp_(*model_, planner::devices_of(w), {.strategy = strategy}),
        batch_(make_batch(w)),
        optimizer_(make_optimizer(w, model_->parameters())) {
    batch_ = {batch_.inputs.to(first()), batch_.targets.to(first())};
    for (const nn::Parameter& p : model_->parameters()) parameter_bytes_ += bytes_of(p.replica(0));
  }
  std::vector<Device> devices() const override { return dp_.devices(); }

 protected:
  int count() const { return static_cast<int>(dp_.devices().size()); }
  Device first() const { return dp_.devices().front(); }
  // The bytes of a scattered tensor that leave the first device.
  std::int64_t scattered_bytes(const Tensor& t) const {
    const std::int64_t samples = t.size(0);
    return bytes_of(t) / samples * (samples - distributed::chunk_sizes(samples, dp_.devices().size())[0]);
  }

  std::shared_ptr<nn::Sequential> model_;
  distributed::DataParallel<nn::Sequential> dp_;
  Batch batch_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::int64_t parameter_bytes_ = 0;
};

// Each replica computes the loss of its samples on its own device.
class Replicated : public DataParallelTraining {
 public:
  explicit Replicated(const Workload& w) : DataParallelTraining(w, Strategy::replicated) {}
  Tensor step() override {
    optimizer_->zero_grad();
    const Tensor loss =
        dp_.loss(std::tie(batch_.inputs, batch_.targets),
                 [&](const Tensor& x, const Tensor& targets) { return loss_of((*model_)(x), targets); });
    loss.backward();
    optimizer_->step();
    return loss.detach();
  }
  std::int64_t bytes_sent() const override {
    return scattered_bytes(batch_.inputs) + scattered_bytes(batch_.targets) +
           count() * ring_bytes(parameter_bytes_, count());
  }
};

// The outputs are gathered on the first device, which computes the loss.
class Master : public DataParallelTraining {
 public:
  explicit Master(const Workload& w) : DataParallelTraining(w, Strategy::master) {}
  Tensor step() override {
    const std::int64_t broadcast_before = dp_.bytes_broadcast();
    optimizer_->zero_grad();
    const Tensor outputs = dp_(batch_.inputs);
    Tensor loss;
    {
      const SpanScope span(first(), Activity::forward, "loss");
      loss = loss_of(outputs, batch_.targets);
    }
    loss.backward();
    optimizer_->step();
    bytes_sent_ = scattered_bytes(batch_.inputs) + (dp_.bytes_broadcast() - broadcast_before) +
                  2 * scattered_bytes(outputs)  // outputs forward, their gradients backward
                  + (count() - 1) * parameter_bytes_;
    return loss.detach();
  }
  std::int64_t bytes_sent() const override { return bytes_sent_; }

 private:
  std::int64_t bytes_sent_ = 0;
};

const Registration replicated({
    .name = "dp-replicated",
    .description = "DataParallel: one process, one replica per device, gradients averaged during backward",
    .make = [](const Workload& w) { return std::make_unique<Replicated>(w); },
});
const Registration master({
    .name = "dp-master",
    .description =
        "DataParallel: one process, parameters broadcast from the first device, gradients summed there",
    .make = [](const Workload& w) { return std::make_unique<Master>(w); },
});

}  // namespace
}  // namespace apps::compare
