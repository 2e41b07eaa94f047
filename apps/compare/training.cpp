#include "tapestry/apps/compare/training.h"

#include <map>

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
                                     static_cast<double>(targets[0].numel())};
          },
      .stages = [this](const std::vector<Device>& devices) { return stages(devices); }};
  if (strategy_.mesh() && strategy_.mesh()->has("tensor")) parts.tensor_plan = tensor_plan_of(w);
  if (!reads_images(w)) parts.sequence_dim = 1;
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

// The library names modules by their paths, where block 3 is "3", and axes by their groups. The group of the
// only axis with several members is that of all ranks.
void Training::name_subjects(std::vector<Span>& spans) const {
  std::map<std::string, std::string> axes;
  const distributed::Mesh* const mesh = strategy_.mesh();
  for (std::size_t i = 0; mesh && i < mesh->axes().size(); ++i) {
    const std::string& name = mesh->axes()[i].name;
    axes[world_ ? (*mesh)[name].group()->name() : name] = name;
  }
  for (Span& s : spans) {
    SpanSubject& about = s.subject;
    const bool moves = s.activity == Activity::communication;
    if (const auto found = axes.find(about.axis); found != axes.end()) about.axis = found->second;
    else if (axes.size() == 1) about.axis = moves ? axes.begin()->second : "";
    else about.axis = about.axis.substr(0, about.axis.find('('));  // of a view: "data(pipeline=0)"
    const std::string first = about.module.substr(0, about.module.find('.'));
    about.module.clear();
    for (std::size_t i = 0; i < blocks_.size(); ++i)
      if (first == std::to_string(i)) about.module = blocks_[i].name;
  }
}

Tensor Training::step() {
  optimizer_->zero_grad();
  const auto read = [this](const distributed::Part&) { return batch_; };
  const std::int64_t targets = w_.batch_size * (reads_images(w_) ? 1 : w_.length);
  Tensor loss = strategy_.gradients(read, static_cast<double>(targets)).loss;
  optimizer_->step();
  return loss;
}

std::vector<Traffic> Training::traffic() const {
  std::vector<Traffic> all;
  for (const distributed::Transfer& t : strategy_.transfers())
    all.push_back({t.from, t.to, t.bytes, t.axis, t.what, t.phase});
  return all;
}

}  // namespace apps::compare
