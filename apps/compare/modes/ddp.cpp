// DistributedDataParallel with one process per device, also with ZeroRedundancyOptimizer.
#include "tapestry/apps/compare/job.h"
#include "tapestry/apps/compare/mode.h"
#include "tapestry/apps/compare/models.h"
#include "tapestry/apps/compare/optimizer.h"
#include "tapestry/tapestry.h"

namespace apps::compare {
namespace {

using namespace tapestry;

// Stage 0 is an optimizer that is not divided.
std::unique_ptr<optim::Optimizer> optimizer_of(const Workload& w, std::vector<nn::Parameter> parameters,
                                               const std::shared_ptr<distributed::ProcessGroup>& world,
                                               int stage) {
  if (stage == 0) return make_optimizer(w, std::move(parameters));
  const distributed::ZeroOptions zero{.process_group = world, .stage = stage};
  if (w.optimizer == "adamw")
    return std::make_unique<distributed::ZeroRedundancyOptimizer<optim::AdamW>>(
        std::move(parameters), zero, optim::AdamWOptions{.lr = w.learning_rate()});
  return std::make_unique<distributed::ZeroRedundancyOptimizer<optim::SGD>>(
      std::move(parameters), zero, optim::SGDOptions{.lr = w.learning_rate(), .momentum = w.momentum});
}

class Ddp : public Training {
 public:
  explicit Ddp(const Workload& w, int zero_stage = 0)
      : world_(join_job(w)),
        device_(rank_device(w, world_->rank())),
        model_(make_model(w, device_)),
        ddp_(*model_, {.process_group = world_}),
        zero_stage_(zero_stage),
        optimizer_(optimizer_of(w, model_->parameters(), world_, zero_stage)),
        batch_(batch_of_rank(w, *world_)) {}
  Tensor step() override {
    optimizer_->zero_grad();
    Tensor loss;
    {
      const SpanScope span(device_, Activity::forward, "forward");
      loss = loss_of(ddp_(batch_.inputs), batch_.targets) * batch_.weight;
    }
    {
      // The losses of the ranks are weighted by their samples, so their gradients must be summed over the
      // ranks. DDP divides the sum by the number of ranks. This factor undoes the division.
      const SpanScope span(device_, Activity::backward, "backward");
      (loss * static_cast<double>(world_->size())).backward();
    }
    optimizer_->step();
    return loss.detach();
  }
  std::vector<Device> devices() const override { return {device_}; }
  std::int64_t bytes_sent() const override {
    std::int64_t bytes = 0;
    for (const distributed::BucketReport& b : ddp_.report().buckets)
      bytes += static_cast<std::int64_t>(b.bytes);
    const int n = world_->size();
    switch (zero_stage_) {
      case 0:
        return ring_bytes(bytes, n);
      case 1:  // gradients are averaged as without ZeRO, and updated parameters gathered
        return ring_bytes(bytes, n) + half_ring_bytes(bytes, n);
      default:  // gradients are only reduced to their owners
        return 2 * half_ring_bytes(bytes, n);
    }
  }
  distributed::ProcessGroup* group() override { return world_.get(); }

 private:
  std::shared_ptr<distributed::ProcessGroup> world_;
  Device device_;
  std::shared_ptr<nn::Sequential> model_;
  distributed::DistributedDataParallel<nn::Sequential> ddp_;
  int zero_stage_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  RankBatch batch_;
};

const Registration registration({
    .name = "ddp",
    .description = "DistributedDataParallel: one process per device, gradients averaged during backward",
    .make = [](const Workload& w) { return std::make_unique<Ddp>(w); },
    .one_process_per_device = true,
});

const Registration zero1({
    .name = "zero1",
    .description = "DistributedDataParallel with ZeroRedundancyOptimizer: optimizer state divided",
    .make = [](const Workload& w) { return std::make_unique<Ddp>(w, 1); },
    .one_process_per_device = true,
});
const Registration zero2({
    .name = "zero2",
    .description = "the same, stage 2: gradients divided, too",
    .make = [](const Workload& w) { return std::make_unique<Ddp>(w, 2); },
    .one_process_per_device = true,
});

}  // namespace
}  // namespace apps::compare
