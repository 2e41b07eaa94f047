// DistributedDataParallel with one process per device.
#include "tapestry/apps/compare/job.h"
#include "tapestry/apps/compare/mode.h"
#include "tapestry/apps/compare/models.h"
#include "tapestry/apps/compare/optimizer.h"
#include "tapestry/tapestry.h"

namespace apps::compare {
namespace {

using namespace tapestry;

class Ddp : public Training {
 public:
  explicit Ddp(const Workload& w)
      : world_(join_job(w)),
        device_(rank_device(w, world_->rank())),
        model_(make_model(w, device_)),
        ddp_(*model_, {.process_group = world_}),
        optimizer_(make_optimizer(w, model_->parameters())),
        batch_(batch_of_rank(w, *world_)) {}
  Tensor step() override {
    optimizer_->zero_grad();
    Tensor loss;
    {
      const SpanScope span(device_, Activity::forward, "forward");
      loss = cross_entropy(ddp_(batch_.images), batch_.labels) * batch_.weight;
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
    return ring_bytes(bytes, world_->size());
  }
  distributed::ProcessGroup* group() override { return world_.get(); }

 private:
  std::shared_ptr<distributed::ProcessGroup> world_;
  Device device_;
  std::shared_ptr<nn::Sequential> model_;
  distributed::DistributedDataParallel<nn::Sequential> ddp_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  RankBatch batch_;
};

const Registration registration({
    .name = "ddp",
    .description = "DistributedDataParallel: one process per device, gradients averaged during backward",
    .make = [](const Workload& w) { return std::make_unique<Ddp>(w); },
    .one_process_per_device = true,
});

}  // namespace
}  // namespace apps::compare
