#include "tapestry/distributed/planner/internal/profiled_model.h"

#include "tapestry/autograd/engine.h"
#include "tapestry/autograd/internal/nested.h"
#include "tapestry/autograd/node.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/core/error.h"
#include "tapestry/core/stream.h"
#include "tapestry/nn/layers/container.h"
#include "tapestry/nn/optim/sgd.h"

namespace tapestry::distributed::planner {

namespace {

std::vector<nn::Parameter> parameters_of(const std::vector<Block>& blocks) {
  std::vector<nn::Parameter> all;
  for (const Block& b : blocks)
    for (const nn::Parameter& p : b.module->parameters()) all.push_back(p);
  return all;
}

std::vector<Block> blocks_on(Device device, const Model& model) {
  check(model.make_blocks && model.loss, "[planner] the model has no make_blocks or no loss; set both");
  std::vector<Block> blocks = model.make_blocks();
  check(!blocks.empty(), "[planner] the model has no blocks; make_blocks must return one or more");
  for (const Block& b : blocks) {
    check(b.module && !b.module->parameters().empty(), "[planner] block ", b.name,
          " has no parameters; join it with the block before or after");
    b.module->to(device);
  }
  return blocks;
}

std::unique_ptr<optim::Optimizer> optimizer_of(const Model& model, std::vector<nn::Parameter> parameters) {
  if (!model.make_optimizer)
    return std::make_unique<optim::SGD>(std::move(parameters), optim::SGD::Options{.lr = model.lr});
  std::unique_ptr<optim::Optimizer> made = model.make_optimizer(std::move(parameters));
  check(made != nullptr, "[planner] make_optimizer returned no optimizer; return one for its parameters");
  return made;
}

// The blocks as the children of one module, whose call is a function.
class CallOfBlocks : public nn::Sequential {
 public:
  std::function<void()> run;
  Tensor forward(const Tensor& x) override {
    run();
    return x;
  }
};

Tensor batch_on(Device device, const Tensor& t, const char* name, const TrainingSetup& setup) {
  check(t.defined() && t.dim() > 0 && t.size(0) == setup.batch_size, "[planner] ", name,
        " must have batch_size = ", setup.batch_size, " samples along the first dimension");
  return t.to(device);
}

}  // namespace

void SpanObserver::enter(Activity activity, std::size_t k) {
  const char* const name = activity == Activity::optimizer ? "update" : activity_name(activity);
  span_.reset();
  span_.emplace(device_, activity, name, static_cast<int>(k));
}

ProfiledModel::ProfiledModel(const Model& model, const TrainingSetup& setup, Device device)
    : device_(device),
      blocks_(blocks_on(device, model)),
      optimizer_(optimizer_of(model, parameters_of(blocks_))),
      inputs_(batch_on(device, model.inputs, "inputs", setup)),
      targets_(batch_on(device, model.targets, "targets", setup)),
      loss_function_(model.loss) {}

ProfiledModel::ProfiledModel(const Model& model, const TrainingSetup& setup, Device device,
                             const std::string& layers)
    : device_(device),
      blocks_(blocks_on(device, model)),
      inputs_(batch_on(device, model.inputs, "inputs", setup)),
      targets_(batch_on(device, model.targets, "targets", setup)),
      loss_function_(model.loss) {
  const auto whole = std::make_shared<CallOfBlocks>();
  for (const Block& b : blocks_) whole->push_back(b.module);
  axes_ = divide_layers(*whole, model, layers, device);
  for (const std::unique_ptr<DividedAxis>& axis : axes_) {
    inputs_ = axis->own_part(inputs_);
    targets_ = axis->own_part(targets_);
  }
  whole_ = whole;
  optimizer_ = optimizer_of(model, parameters_of(blocks_));
}

void ProfiledModel::call(const std::function<void()>& forward) {
  if (!whole_) return forward();
  auto& whole = dynamic_cast<CallOfBlocks&>(*whole_);
  whole.run = forward;
  whole(Tensor(inputs_));
  whole.run = {};
}

std::vector<nn::Parameter> ProfiledModel::parameters() const { return parameters_of(blocks_); }

std::int64_t ProfiledModel::parameter_bytes() const {
  std::int64_t bytes = 0;
  for (const nn::Parameter& p : parameters()) bytes += static_cast<std::int64_t>(p->nbytes());
  return bytes;
}

void ProfiledModel::forward(std::int64_t n, StepObserver& observer, bool keep_gradients, bool in_two) {
  observer_ = &observer;
  began_.clear();
  if (!keep_gradients) optimizer_->zero_grad();
  Tensor x = inputs(n);
  call([&] {
    for (std::size_t k = 0; k <= count(); ++k) {
      observer.enter(Activity::forward, k);
      began_.push_back(autograd::next_sequence());
      Tensor result = k < count() ? (*blocks_[k].module)(x) : loss(x, targets(n));
      observer.computed();
      x = std::move(result);
      if (k == 0 && in_two) split_at_ = x = x.detach().set_requires_grad();
    }
    observer.leave();
  });
  loss_ = std::move(x);
  synchronize(device_);
}

template <class F>
void ProfiledModel::observed(const F& backward) {
  std::size_t at = count();
  observer_->enter(Activity::backward, at);
  const autograd::NodeObserver follow([&](std::uint64_t node) {
    while (at > 0 && node < began_[at]) observer_->enter(Activity::backward, --at);
  });
  backward();
  observer_->leave();
  synchronize(device_);
}

void ProfiledModel::backward() {
  observed([this] { loss_.backward(); });
  loss_ = {};
}

void ProfiledModel::backward_in_two(const std::function<void()>& begin_weights) {
  autograd::WeightGradients weights;
  Tensor gradient;
  observed([&] {
    gradient = autograd::backward_inputs({loss_}, {split_at_}, {ones_like(loss_.detach())}, weights)[0];
    loss_ = split_at_ = gradient = {};
  });
  begin_weights();
  observed([&] { weights.accumulate(); });
}

void ProfiledModel::step_by_block(std::int64_t n, StepObserver& observer) {
  optimizer_->zero_grad();
  std::vector<Tensor> inputs;
  std::vector<std::vector<Tensor>> outputs;
  Tensor x = this->inputs(n);
  call([&] {
    for (std::size_t k = 0; k <= count(); ++k) {
      observer.enter(Activity::forward, k);
      inputs.push_back(k > 0 ? x.detach().set_requires_grad() : x);
      x = k < count() ? (*blocks_[k].module)(inputs[k]) : loss(inputs[k], targets(n));
      outputs.push_back({x});
      observer.computed();
    }
  });
  x = {};
  std::vector<Tensor> gradient{ones_like(outputs.back()[0].detach())};
  for (std::size_t k = count() + 1; k-- > 0;) {
    observer.enter(Activity::backward, k);
    autograd::backward(std::move(outputs[k]), std::exchange(gradient, {}), false);
    if (k > 0) gradient = {inputs[k].grad()};
    inputs[k] = {};
  }
  observer.leave();
  synchronize(device_);
}

std::vector<std::array<std::vector<SentByLayers>, 2>> ProfiledModel::sent(std::int64_t n) {
  struct Counter : StepObserver {
    explicit Counter(const ProfiledModel& m) : all(m.count() + 1), model(m) {}
    void enter(Activity activity, std::size_t k) override {
      leave();
      at = {k, activity == Activity::forward ? 0 : 1};
      for (const auto& axis : model.axes()) axis->begin();
    }
    void leave() override {
      if (!at) return;
      const auto [k, pass] = *at;
      const nn::Module* const block = k < model.count() ? model.block(k).module.get() : nullptr;
      for (const auto& axis : model.axes()) all[k][pass].push_back(axis->sent(block, pass == 1));
      at.reset();
    }
    std::vector<std::array<std::vector<SentByLayers>, 2>> all;
    const ProfiledModel& model;
    std::optional<std::pair<std::size_t, std::size_t>> at;
  } counter(*this);
  forward(n, counter);
  backward();
  return std::move(counter.all);
}

void ProfiledModel::update(StepObserver& observer) {
  observer.enter(Activity::optimizer, 0);
  optimizer_->step();
  observer.leave();
  synchronize(device_);
}

}  // namespace tapestry::distributed::planner
