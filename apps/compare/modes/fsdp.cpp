// fully_shard with one process per device: every block of the model is a unit.
#include "tapestry/apps/compare/job.h"
#include "tapestry/apps/compare/mode.h"
#include "tapestry/apps/compare/models.h"
#include "tapestry/apps/compare/optimizer.h"
#include "tapestry/tapestry.h"

namespace apps::compare {
namespace {

using namespace tapestry;

class Fsdp : public Training {
 public:
  explicit Fsdp(const Workload& w)
      : world_(join_job(w)), device_(rank_device(w, world_->rank())), batch_(batch_of_rank(w, *world_)) {
    const std::vector<Block> blocks = make_blocks(w);
    model_ = joined(blocks, 0, blocks.size());
    model_->to(device_);
    for (const Block& block : blocks) distributed::fully_shard(*block.module, {.group = world_});
    sharded_.emplace(distributed::fully_shard(*model_, {.group = world_}));
    optimizer_ = make_optimizer(w, model_->parameters());
  }
  Tensor step() override {
    sharded_->reset_report();
    optimizer_->zero_grad();
    Tensor loss;
    {
      const SpanScope span(device_, Activity::forward, "forward");
      loss = loss_of((*model_)(batch_.inputs), batch_.targets) * batch_.weight;
    }
    {
      // Gradients are divided by the number of ranks, as those of DDP. This factor undoes the division.
      const SpanScope span(device_, Activity::backward, "backward");
      (loss * static_cast<double>(world_->size())).backward();
    }
    optimizer_->step();
    return loss.detach();
  }
  std::vector<Device> devices() const override { return {device_}; }
  std::int64_t bytes_sent() const override {
    std::int64_t bytes = 0;
    for (const distributed::FsdpUnitReport& unit : sharded_->report().units)
      bytes += (unit.gathers + unit.scatters) *
               half_ring_bytes(static_cast<std::int64_t>(unit.full_bytes), world_->size());
    return bytes;
  }
  distributed::ProcessGroup* group() override { return world_.get(); }

 private:
  std::shared_ptr<distributed::ProcessGroup> world_;
  Device device_;
  RankBatch batch_;
  std::shared_ptr<nn::Sequential> model_;
  std::optional<distributed::FullyShard> sharded_;
  std::unique_ptr<optim::Optimizer> optimizer_;
};

const Registration registration({
    .name = "fsdp",
    .description = "fully_shard: one process per device, parameters, gradients and optimizer state divided",
    .make = [](const Workload& w) { return std::make_unique<Fsdp>(w); },
    .one_process_per_device = true,
});

}  // namespace
}  // namespace apps::compare
