#include "tapestry/apps/compare/training.h"

#include "tapestry/apps/compare/job.h"
#include "tapestry/apps/compare/optimizer.h"
#include "tapestry/autograd/ops/copy.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/distributed/pipeline/stage.h"

namespace apps::compare {

using namespace tapestry;

namespace {

distributed::StrategyOptions options_of(const Mode& mode, const Workload& w,
                                        const std::shared_ptr<distributed::ProcessGroup>& world) {
  return {.world = world,
          .devices = world ? std::vector{rank_device(w, world->rank())} : planner::devices_of(w),
          .parts = mode.splits_model() ? w.micro_batches : 1};
}

}  // namespace

Training::Training(const Mode& mode, const Workload& w)
    : w_(w),
      world_(mode.one_process_per_device() ? join_job(w) : nullptr),
      blocks_(make_blocks(w)),
      model_(joined(blocks_, 0, blocks_.size())),
      strategy_(mode.plan, options_of(mode, w, world_)) {
  distributed::ModelParts parts{
      .forward = [this](const std::vector<Tensor>& inputs) { return std::vector{(*model_)(inputs[0])}; },
      .loss =
          [](const std::vector<Tensor>& outputs, const std::vector<Tensor>& targets) {
            return distributed::Loss{loss_of(outputs[0], targets[0]),
                                     static_cast<double>(targets[0].size(0))};
          },
      .stages = [this](const std::vector<Device>& devices) { return stages(devices); }};
  for (const Block& block : blocks_) parts.units.push_back(block.module.get());
  strategy_.wrap(*model_, std::move(parts));
  optimizer_ = make_optimizer(w, strategy_, model_->parameters());
  const Batch whole = make_batch(w);
  const distributed::Samples mine = strategy_.share(w.batch_size, {});
  const auto part = [&](const Tensor& all, Device device) {
    const Tensor own = all.narrow(0, mine.first, mine.count).to(device);
    return mine.count < w.batch_size ? clone(own) : own;
  };
  const Device last = mode.splits_model() ? devices().back() : devices().front();
  // A rank that is not the first, or the last, of a pipeline reads no inputs, or no targets.
  int stage = 0, stages = 1;
  if (const std::string name = mode.stage_axis(); world_ && !name.empty()) {
    const distributed::Axis axis = (*strategy_.mesh())[name];
    stage = axis.coordinate(), stages = axis.size();
  }
  if (stage == 0) batch_.inputs = {part(whole.inputs, devices().front())};
  if (stage + 1 == stages) batch_.targets = {part(whole.targets, last)};
}

std::vector<distributed::Stage> Training::stages(const std::vector<Device>& devices) {
  std::vector<distributed::Stage> all;
  stage_modules_ = make_stages(w_, blocks_);
  for (std::size_t i = 0; i < stage_modules_.size(); ++i) all.emplace_back(*stage_modules_[i], devices[i]);
  return all;
}

Tensor Training::step() {
  optimizer_->zero_grad();
  const auto read = [this](const distributed::Part&) { return batch_; };
  Tensor loss = strategy_.gradients(read, static_cast<double>(w_.batch_size)).loss;
  optimizer_->step();
  return loss;
}

std::vector<Traffic> Training::traffic() const {
  std::vector<Traffic> all;
  for (const distributed::Transfer& t : strategy_.transfers())
    all.push_back({t.from, t.to, t.bytes, t.axis, t.what});
  return all;
}

}  // namespace apps::compare
