#include "tapestry/nn/optim/averaging.h"

#include <cstdio>
#include <exception>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/core/error.h"
#include "tapestry/core/internal/capture_state.h"
#include "tapestry/nn/internal/stored.h"

namespace tapestry::optim {

namespace {
// A named type, so that a captured step can see that the number of models does not matter.
struct MovingAverage {
  double decay;
  Tensor operator()(const Tensor& average, const Tensor& weight, std::int64_t) const {
    return average + (weight - average) * (1 - decay);
  }
};

// Keeps the memory of `average` where that is possible, because a captured step writes to it.
void assign(Tensor& average, const Tensor& value) {
  if (average.device() == value.device() && average.dtype() == value.dtype() &&
      average.sizes() == value.sizes())
    average.copy_(value);
  else average = value.clone();
}
}  // namespace

AverageFunction get_ema_avg(double decay) {
  check(decay >= 0 && decay <= 1, "[get_ema_avg] decay must lie in [0, 1] but is ", decay);
  return MovingAverage{decay};
}

AverageFunction get_swa_avg() {
  return [](const Tensor& average, const Tensor& weight, std::int64_t num_averaged) {
    return average + (weight - average) / static_cast<double>(num_averaged + 1);
  };
}

namespace {
// A bf16 average of many models could not move any more: its steps would be below half an ulp.
DType average_dtype(const Tensor& weight) {
  const DType t = weight.dtype();
  return t == DType::f16 || t == DType::bf16 ? DType::f32 : t;
}
}  // namespace

AveragedModel::AveragedModel(nn::Module& model, Options options) : avg_fn_(std::move(options.avg_fn)) {
  check(static_cast<bool>(avg_fn_), "[AveragedModel] avg_fn is empty; pass get_ema_avg() or get_swa_avg()");
  const auto add = [&](const std::string& name, const nn::TensorSlot& slot) {
    Entry& entry = entries_.emplace_back(Entry{name, slot, {}});
    entry.averages.resize(slot.layout() ? static_cast<std::size_t>(slot.replicas()) : 1);
    for (std::size_t i = 0; i < entry.averages.size(); ++i)
      entry.averages[i] = entry.weight(i).to(average_dtype(entry.weight(i))).clone();
  };
  for (const auto& [name, p] : model.named_parameters()) add(name, p);
  if (options.use_buffers)
    for (const auto& [name, b] : model.named_buffers())
      if (b.replica(0).defined() && is_floating(b.replica(0).dtype())) add(name, b);
}

Tensor AveragedModel::Entry::weight(std::size_t i) const {
  return nn::stored_tensor(slot, static_cast<int>(i)).detach();
}

void AveragedModel::update_parameters() {
  check(!in_use_,
        "[AveragedModel] update_parameters() was called while the model has the averaged weights; "
        "end the Scope first");
  check_shapes();
  const NoGradGuard no_grad;
  auto* const capture = tapestry::detail::current_capture();
  if (*n_averaged_ == 0)
    tapestry::detail::refuse_in_capture("AveragedModel", "call update_parameters() once before the capture");
  if (!avg_fn_.target<MovingAverage>())
    tapestry::detail::refuse_in_capture(
        "AveragedModel",
        "avg_fn gets the number of models, which a replay cannot change; use get_ema_avg(), or "
        "call update_parameters() outside of the step");
  for (Entry& e : entries_)
    for (std::size_t i = 0; i < e.averages.size(); ++i) {
      const Tensor weight = e.weight(i).to(average_dtype(e.weight(i)));
      assign(e.averages[i], *n_averaged_ == 0 ? weight
                                              : avg_fn_(e.averages[i].to(weight.device(), weight.dtype()),
                                                        weight, *n_averaged_));
    }
  if (capture) capture->before_replay.push_back([count = n_averaged_] { ++*count; });
  else ++*n_averaged_;
}

// A weight that has been sharded, or is no longer, has another shape than its average.
void AveragedModel::check_shapes() const {
  for (const Entry& e : entries_)
    for (std::size_t i = 0; i < e.averages.size(); ++i)
      check(e.averages[i].sizes() == e.weight(i).sizes() &&
                (!e.slot.layout() || e.averages.size() == static_cast<std::size_t>(e.slot.replicas())),
            "[AveragedModel] the average of '", e.name, "' has shape ", e.averages[i].sizes(),
            ", and the model's tensor ", e.weight(i).sizes(), "; make the AveragedModel after fully_shard()");
}

void AveragedModel::check_use() const {
  check(!in_use_,
        "[AveragedModel] use() was called while the model has the averaged weights already; end the "
        "other Scope first");
  check(*n_averaged_ > 0, "[AveragedModel] nothing has been averaged; call update_parameters() first");
  check_shapes();
}

void AveragedModel::Entry::set_all(const std::vector<Tensor>& values) const {
  for (int r = 0; r < slot.replicas(); ++r)
    nn::stored_tensor(slot, r).detach().copy_(values[slot.layout() ? static_cast<std::size_t>(r) : 0]);
  nn::refresh_full(slot);
}

void AveragedModel::enter() {
  const NoGradGuard no_grad;
  for (Entry& e : entries_)
    for (std::size_t i = 0; i < e.averages.size(); ++i) e.originals.push_back(e.weight(i).clone());
  in_use_ = true;
  for (const Entry& e : entries_) e.set_all(e.averages);
}

void AveragedModel::leave() noexcept {
  const NoGradGuard no_grad;
  try {
    for (Entry& e : entries_) e.set_all(e.originals);
  } catch (const std::exception& e) {  // under unshard(), if another rank has failed
    std::fprintf(stderr, "[AveragedModel] the model has not got its own weights back: %s\n", e.what());
  }
  for (Entry& e : entries_) e.originals.clear();
  in_use_ = false;
}

nn::StateDict AveragedModel::state_dict() const {
  const NoGradGuard no_grad;
  nn::StateDict dict{{"n_averaged", scalar_tensor(*n_averaged_, {DType::i64, kCPU})}};
  for (const Entry& e : entries_) {
    const auto& layout = e.slot.layout();
    if (layout && static_cast<int>(e.averages.size()) < layout->ranks())
      fail("[AveragedModel] the average of '", e.name, "' of shape ", layout->whole_sizes(),
           nn::divided_text(*layout, current_context().replica),
           "; save the model with distributed::save_checkpoint() or "
           "distributed::save_sharded() on all ranks while use() lasts");
    dict.emplace_back("module." + e.name,
                      layout ? nn::join_parts(*layout, e.averages) : e.averages[0].clone());
  }
  return dict;
}

void AveragedModel::load_state_dict(const nn::StateDict& dict) {
  check(!in_use_,
        "[AveragedModel] load_state_dict() was called while the model has the averaged weights; end "
        "the Scope first");
  const NoGradGuard no_grad;
  const nn::StateDictIndex index(dict);
  const Tensor* const count = index.find("n_averaged");
  check(
      count && count->defined() && count->numel() == 1 && count->dtype() == DType::i64 && count->item() >= 0,
      "[load_state_dict] the state has no number n_averaged of at least 0, and nothing was loaded; pass what "
      "state_dict() of an AveragedModel gave");
  check(dict.size() == entries_.size() + 1, "[load_state_dict] the state has ", dict.size() - 1,
        " averaged tensors and the model ", entries_.size(),
        ", and nothing was loaded; pass the state of the same model");
  std::vector<std::vector<Tensor>> loaded;
  for (const Entry& e : entries_) {
    const Tensor* const t = index.find("module." + e.name);
    std::vector<Tensor>& parts = loaded.emplace_back(e.averages.size());
    for (std::size_t i = 0; t && t->defined() && i < parts.size(); ++i) {
      const Tensor part = nn::stored_part(e.slot, static_cast<int>(i), *t);
      if (part.defined()) parts[i] = part.to(e.weight(i).device(), average_dtype(e.weight(i))).clone();
    }
    check(parts.at(0).defined(), "[load_state_dict] module.", e.name,
          " is missing or does not have the shape ", nn::whole_sizes(e.slot),
          ", and nothing was loaded; pass the state of the same model");
  }
  for (std::size_t i = 0; i < entries_.size(); ++i)
    for (std::size_t r = 0; r < loaded[i].size(); ++r) assign(entries_[i].averages[r], loaded[i][r]);
  *n_averaged_ = count->item<std::int64_t>();
}

namespace detail {

BatchNormUpdate::BatchNormUpdate(nn::Module& model) : model_(model), was_training_(model.is_training()) {
  const NoGradGuard no_grad;
  const auto prepare = [&](auto* layer) {
    if (!layer || !layer->running_mean.defined()) return;
    for (int r = 0; r < layer->running_mean.replicas(); ++r) {
      layer->running_mean.replica(r).zero_();
      layer->running_var.replica(r).fill_(1);
      layer->num_batches_tracked.replica(r).zero_();
    }
    momenta_.emplace_back(&layer->momentum, layer->momentum);
    layer->momentum.reset();  // the running statistics become plain averages
  };
  for (nn::Module* m : model.modules()) {
    prepare(dynamic_cast<nn::BatchNorm1d*>(m));
    prepare(dynamic_cast<nn::BatchNorm2d*>(m));
    prepare(dynamic_cast<nn::BatchNorm3d*>(m));
  }
  if (!momenta_.empty()) model.train();
}

BatchNormUpdate::~BatchNormUpdate() {
  for (const auto& [momentum, value] : momenta_) *momentum = value;
  if (!momenta_.empty()) model_.train(was_training_);
}

}  // namespace detail

}  // namespace tapestry::optim
