#include "tapestry/nn/optim/averaging.h"

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/core/error.h"

namespace tapestry::optim {

AverageFunction get_ema_avg(double decay) {
  check(decay >= 0 && decay <= 1, "[get_ema_avg] decay must lie in [0, 1] but is ", decay);
  return [decay](const Tensor& average, const Tensor& weight, std::int64_t) {
    return average + (weight - average) * (1 - decay);
  };
}

AverageFunction get_swa_avg() {
  return [](const Tensor& average, const Tensor& weight, std::int64_t num_averaged) {
    return average + (weight - average) / static_cast<double>(num_averaged + 1);
  };
}

AveragedModel::AveragedModel(nn::Module& model, Options options) : avg_fn_(std::move(options.avg_fn)) {
  check(static_cast<bool>(avg_fn_), "[AveragedModel] avg_fn is empty; pass get_ema_avg() or get_swa_avg()");
  for (const auto& [name, p] : model.named_parameters()) entries_.push_back({name, p, {}, {}});
  if (options.use_buffers)
    for (const auto& [name, b] : model.named_buffers())
      if (b.replica(0).defined() && is_floating(b.replica(0).dtype())) entries_.push_back({name, b, {}, {}});
  for (Entry& e : entries_) e.average = e.slot.replica(0).detach().clone();
}

void AveragedModel::update_parameters() {
  check(!in_use_,
        "[AveragedModel] update_parameters() was called while the model has the averaged weights; "
        "end the Scope first");
  const NoGradGuard no_grad;
  for (Entry& e : entries_) {
    const Tensor weight = e.slot.replica(0).detach();
    e.average = n_averaged_ == 0
                    ? weight.clone()
                    : avg_fn_(e.average.to(weight.device(), weight.dtype()), weight, n_averaged_);
  }
  ++n_averaged_;
}

void AveragedModel::check_use() const {
  check(!in_use_,
        "[AveragedModel] use() was called while the model has the averaged weights already; end the "
        "other Scope first");
  check(n_averaged_ > 0, "[AveragedModel] nothing has been averaged; call update_parameters() first");
}

void AveragedModel::Entry::set_all(const Tensor& value) const {
  for (int r = 0; r < slot.replicas(); ++r) slot.replica(r).detach().copy_(value);
}

void AveragedModel::enter() {
  const NoGradGuard no_grad;
  for (Entry& e : entries_) e.original = e.slot.replica(0).detach().clone();
  in_use_ = true;
  for (const Entry& e : entries_) e.set_all(e.average);
}

void AveragedModel::leave() {
  const NoGradGuard no_grad;
  for (Entry& e : entries_) {
    e.set_all(e.original);
    e.original = {};
  }
  in_use_ = false;
}

nn::StateDict AveragedModel::state_dict() const {
  const NoGradGuard no_grad;
  nn::StateDict dict{{"n_averaged", scalar_tensor(n_averaged_, {DType::i64, kCPU})}};
  for (const Entry& e : entries_) dict.emplace_back("module." + e.name, e.average.clone());
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
  std::vector<Tensor> loaded;
  for (const Entry& e : entries_) {
    const Tensor* const t = index.find("module." + e.name);
    const Tensor& like = e.slot.replica(0);
    check(t && t->defined() && t->sizes() == like.sizes(), "[load_state_dict] module.", e.name,
          " is missing or does not have the shape ", like.sizes(),
          ", and nothing was loaded; pass the state of the same model");
    loaded.push_back(t->to(like.device(), like.dtype()).clone());
  }
  for (std::size_t i = 0; i < entries_.size(); ++i) entries_[i].average = std::move(loaded[i]);
  n_averaged_ = count->item<std::int64_t>();
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
