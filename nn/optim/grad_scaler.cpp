#include "tapestry/nn/optim/grad_scaler.h"

#include <algorithm>
#include <cmath>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/core/error.h"
#include "tapestry/core/internal/capture_state.h"
#include "tapestry/nn/internal/divided_gradients.h"
#include "tapestry/nn/internal/many_gradients.h"
#include "tapestry/nn/internal/replica_devices.h"

namespace tapestry::optim {
namespace {

using nn::ReplicaDevice;

// Calls fn(gradient) for every gradient of this ReplicaDevice.
template <class F>
void for_gradients(const std::vector<Parameter>& params, const ReplicaDevice& replica_device, const F& fn) {
  for (const Parameter& p : params) {
    if (!replica_device.has(p)) continue;
    const Tensor grad = nn::stored_tensor(p, replica_device.replica).grad();
    if (!grad.defined()) continue;
    nn::DividedGradients* const divided = nn::divided_gradients(grad);
    fn(divided ? divided->part(*grad.storage()) : grad);
  }
}

// 1 if one of the tensors has an infinity or NaN, else 0: a 0-d f32 tensor on their device. The largest
// magnitude of a tensor is finite just if all elements are; a sum of squares could overflow.
Tensor not_finite(const std::vector<Tensor>& tensors, Device device) {
  std::vector<Tensor> some, largest;
  for (const Tensor& t : tensors)
    if (t.numel() > 0) some.push_back(t);
  if (device.is_cuda() && !some.empty())
    if (const auto many = nn::ManyGradients::of(some))
      return logical_not(isfinite(many->norm(INFINITY, 1).total)).to(DType::f32).reshape({});
  for (const Tensor& t : some)  // GPUs have no norm of f16
    largest.push_back(norm(t.dtype() == DType::f16 ? t.to(DType::f32) : t, INFINITY).to(DType::f32));
  if (largest.empty()) return zeros({}, {DType::f32, device});
  return any(logical_not(isfinite(stack(largest)))).to(DType::f32);
}

// Makes found_inf of gradients that are divided among ranks the same on all ranks. Collective.
Tensor agreed(const std::vector<Parameter>& params, const Tensor& found) {
  Tensor all = found;
  // The parts that ranks hold after ZeRO-2's reduction.
  for (const Parameter& p : params) {
    const Tensor grad = nn::stored_tensor(p, 0).grad();
    nn::DividedGradients* const divided = grad.defined() ? nn::divided_gradients(grad) : nullptr;
    if (!divided) continue;
    const Tensor count = all.to(grad.device(), DType::f64).reshape({1}).clone();
    divided->sum_over_ranks(count);
    all = gt(count, 0).reshape({}).to(found.device(), DType::f32);
    break;
  }
  for (const nn::DividingGroup& group : nn::dividing_groups(params)) {
    // The replicas of one process are ranks of the group and must call the collective at the same time.
    std::vector<ReplicaDevice> replicas;
    for (int r = 0; r < group.replicas; ++r) replicas.push_back({r, group.layout->stored(r).device()});
    std::vector<Tensor> counts(replicas.size());
    for (const ReplicaDevice& r : replicas)
      counts[static_cast<std::size_t>(r.replica)] = all.to(r.device, DType::f32).reshape({1}).clone();
    nn::for_each_rank(replicas, [&](const ReplicaDevice& r) {
      group.group->sum(r.replica, counts[static_cast<std::size_t>(r.replica)]);
    });
    all = gt(counts[0], 0).reshape({}).to(found.device(), DType::f32);
  }
  return all;
}

}  // namespace

GradScaler::GradScaler(const Options& options) : options_(options), start_(options.init_scale) {
  check(options.init_scale > 0 && std::isfinite(options.init_scale), "[GradScaler] init_scale ",
        options.init_scale, " must be positive and finite");
  check(options.growth_factor > 1 && std::isfinite(options.growth_factor), "[GradScaler] growth_factor ",
        options.growth_factor, " must be larger than 1");
  check(options.backoff_factor > 0 && options.backoff_factor < 1, "[GradScaler] backoff_factor ",
        options.backoff_factor, " must lie between 0 and 1");
  check(options.growth_interval > 0, "[GradScaler] growth_interval ", options.growth_interval,
        " must be positive");
}

Tensor GradScaler::scale(const Tensor& loss) { return scale(std::vector<Tensor>{loss})[0]; }

std::vector<Tensor> GradScaler::scale(const std::vector<Tensor>& losses) {
  if (!options_.enabled) return losses;
  check(!losses.empty(), "[GradScaler] scale() got no loss");
  std::vector<Tensor> scaled;
  for (const Tensor& loss : losses) {
    tapestry::detail::check_defined("GradScaler", loss, "the loss");
    if (!scale_.defined()) {
      const NoGradGuard no_grad;
      scale_ = full({}, start_, {DType::f32, loss.device()});
      good_steps_ = full({}, good_start_, {DType::i64, loss.device()});
    }
    scaled.push_back(loss * scale_.to(loss.device()));
  }
  return scaled;
}

void GradScaler::check_scale(const char* caller) const {
  check(scale_.defined(), "[GradScaler] ", caller,
        " before scale(); call scaler.scale(loss).backward() first");
}

// 1 if a gradient of the optimizer is infinite or NaN, else 0: a 0-d f32 tensor on the scale's device. With
// `divide`, the gradients are divided by the scale. Collective if parameters are sharded.
Tensor GradScaler::find_inf(Optimizer& optimizer, const char* caller, bool divide) const {
  const NoGradGuard no_grad;
  const std::vector<Parameter> params = optimizer.parameters();
  std::vector<ReplicaDevice> devices;
  nn::add_replica_devices(params, devices);
  bool sharded = false;
  for (const Parameter& p : params) {
    sharded = sharded || p.layout() != nullptr;
    check(options_.agree || !nn::is_of_one_stage(p), "[GradScaler] ", caller,
          ": the parameters belong to one stage of a pipeline over ranks, and another stage may skip a step "
          "that this one makes; set GradScalerOptions::agree");
  }
  check(!devices.empty() || sharded, "[GradScaler] ", caller,
        ": no parameter of the optimizer has a gradient; call backward() first");
  for (const ReplicaDevice& d : devices)
    for_gradients(params, d, [&](const Tensor& g) {
      check(!divide || g.dtype() != DType::f16, "[GradScaler] a gradient of shape ", g.sizes(),
            " is float16, and would underflow when it is divided by the scale; call step() of an optimizer "
            "with "
            "a fused kernel without unscale_(), or keep the parameters in float32 and compute in float16 by "
            "AutocastGuard");
    });

  // PyTorch divides in f64 and rounds to f32, which for a division gives the same number (Figueroa 1995).
  const Tensor inverse = divide ? rdiv(1, scale_) : Tensor();
  std::vector<Tensor> found(devices.size());
  nn::for_each_replica_device(devices, [&](const ReplicaDevice& d) {
    std::vector<Tensor> grads;
    for_gradients(params, d, [&](const Tensor& g) { grads.push_back(g); });
    found[static_cast<std::size_t>(std::find(devices.begin(), devices.end(), d) - devices.begin())] =
        not_finite(grads, d.device);
    if (!divide) return;
    const Tensor factor = inverse.to(d.device);
    for (const Tensor& g : grads) g.mul_(factor);
  });
  Tensor all = zeros({}, {DType::f32, scale_.device()});
  for (const Tensor& f : found) all = maximum(all, f.to(scale_.device()));
  all = agreed(params, all);
  if (options_.agree) options_.agree(all);
  return all;
}

void GradScaler::unscale_(Optimizer& optimizer) {
  if (!options_.enabled) return;
  check_scale("unscale_()");
  const auto known = optimizers_.find(&optimizer);
  const Stage stage = known == optimizers_.end() ? Stage::ready : known->second.stage;
  check(stage != Stage::unscaled,
        "[GradScaler] unscale_() was called for this optimizer already; call update() before the next time");
  check(stage != Stage::stepped, "[GradScaler] unscale_() was called after step(); call update() first");
  optimizers_[&optimizer] = {Stage::unscaled, find_inf(optimizer, "unscale_()", true)};
}

ScaledStep GradScaler::step(Optimizer& optimizer) {
  if (!options_.enabled) {
    optimizer.step();
    return ScaledStep({});
  }
  check_scale("step()");
  const auto known = optimizers_.find(&optimizer);
  check(known == optimizers_.end() || known->second.stage != Stage::stepped,
        "[GradScaler] step() was called for this optimizer already; call update() before the next time");
  const bool on_device = optimizer.supports_device_scaling();
  const bool unscaled = known != optimizers_.end();
  const Tensor found = unscaled ? known->second.found_inf : find_inf(optimizer, "step()", !on_device);
  if (!on_device)
    tapestry::detail::refuse_in_capture(
        optimizer.name(), "the host reads found_inf, since this optimizer has no fused kernel; step outside");
  if (on_device) optimizer.step(unscaled ? Tensor() : scale_, found);
  else if (found.item() == 0) optimizer.step();  // the host waits here
  optimizers_[&optimizer] = {Stage::stepped, found};
  return ScaledStep(found);
}

void GradScaler::update(std::optional<double> new_scale) {
  if (!options_.enabled) return;
  check_scale("update()");
  const NoGradGuard no_grad;
  if (new_scale) {
    check(*new_scale > 0 && std::isfinite(*new_scale), "[GradScaler] the new scale ", *new_scale,
          " must be positive and finite");
    scale_.fill_(*new_scale);
  } else {
    check(!optimizers_.empty(), "[GradScaler] update() before unscale_() or step() of an optimizer");
    Tensor found = zeros({}, {DType::f32, scale_.device()});
    for (const auto& [optimizer, state] : optimizers_) found = maximum(found, state.found_inf);
    const Tensor bad = gt(found, 0), good_steps = good_steps_ + 1;
    const Tensor grown = scale_ * options_.growth_factor;
    // As in PyTorch, the scale does not grow if it would become infinite.
    const Tensor grows = logical_and(ge(good_steps, options_.growth_interval), isfinite(grown));
    const Tensor ends = logical_or(bad, ge(good_steps, options_.growth_interval));
    scale_.copy_(where(bad, scale_ * options_.backoff_factor, where(grows, grown, scale_)));
    good_steps_.copy_(where(ends, zeros_like(good_steps), good_steps));
  }
  optimizers_.clear();
}

double GradScaler::get_scale() const {
  if (!options_.enabled) return 1;
  return scale_.defined() ? scale_.item() : start_;
}

Tensor GradScaler::found_inf(const Optimizer& optimizer) const {
  const auto known = optimizers_.find(&optimizer);
  return known == optimizers_.end() ? Tensor() : known->second.found_inf;
}

StateDict GradScaler::state_dict() const {
  if (!options_.enabled) return {};
  const auto number = [](double v) { return full({}, v, DType::f64); };
  const auto integer = [](std::int64_t v) { return full({}, v, DType::i64); };
  return {
      {"scale", number(get_scale())},
      {"growth_factor", number(options_.growth_factor)},
      {"backoff_factor", number(options_.backoff_factor)},
      {"growth_interval", integer(options_.growth_interval)},
      {"_growth_tracker", integer(good_steps_.defined() ? good_steps_.item<std::int64_t>() : good_start_)}};
}

void GradScaler::load_state_dict(const StateDict& dict) {
  if (!options_.enabled) {
    check(dict.empty(),
          "[GradScaler] load_state_dict() on a scaler that is not enabled; construct it with "
          ".enabled = true, or do not load the state");
    return;
  }
  const auto number = [&dict](const char* name, auto in_range) {
    const Tensor* const t = nn::find(dict, name);
    check(t != nullptr && t->numel() == 1, "[GradScaler] the state has no number '", name,
          "'; pass what state_dict() returned");
    const double v = t->item();
    check(std::isfinite(v) && in_range(v), "[GradScaler] the saved ", name, " is ", v,
          ", which no scaler has; the file is damaged or belongs to something else");
    return v;
  };
  const double scale = number("scale", [](double v) { return v > 0; });
  const double growth = number("growth_factor", [](double v) { return v > 1; });
  const double backoff = number("backoff_factor", [](double v) { return v > 0 && v < 1; });
  const double interval = number("growth_interval", [](double v) { return v >= 1; });
  const double good = number("_growth_tracker", [](double v) { return v >= 0; });
  options_.growth_factor = growth;
  options_.backoff_factor = backoff;
  options_.growth_interval = static_cast<std::int64_t>(interval);
  start_ = scale;
  good_start_ = static_cast<std::int64_t>(good);
  const NoGradGuard no_grad;
  if (scale_.defined()) {
    scale_.fill_(start_);
    good_steps_.fill_(good_start_);
  }
  optimizers_.clear();
}

}  // namespace tapestry::optim
