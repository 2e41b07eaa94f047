#include "tapestry/nn/optim/schedules.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <string>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/core/error.h"

namespace tapestry::optim {

MultiStepLR::MultiStepLR(Optimizer& optimizer, const MultiStepLROptions& options)
    : Scheduler(optimizer), options_(options) {
  std::sort(options_.milestones.begin(), options_.milestones.end());
  start();
}
double MultiStepLR::lr_at(std::int64_t steps, std::size_t group) const {
  const auto& m = options_.milestones;
  return base_lr(group) *
         std::pow(options_.gamma,
                  static_cast<double>(std::upper_bound(m.begin(), m.end(), steps) - m.begin()));
}

ExponentialLR::ExponentialLR(Optimizer& optimizer, const ExponentialLROptions& options)
    : Scheduler(optimizer), options_(options) {
  check(options.gamma > 0, "[ExponentialLR] gamma must be positive but is ", options.gamma, "; set it");
  start();
}
double ExponentialLR::lr_at(std::int64_t steps, std::size_t group) const {
  return base_lr(group) * std::pow(options_.gamma, static_cast<double>(steps));
}

PolynomialLR::PolynomialLR(Optimizer& optimizer, const PolynomialLROptions& options)
    : Scheduler(optimizer), options_(options) {
  check(options.total_iters > 0, "[PolynomialLR] total_iters must be positive but is ", options.total_iters);
  check(options.power >= 0, "[PolynomialLR] power must not be negative but is ", options.power);
  start();
}
double PolynomialLR::lr_at(std::int64_t steps, std::size_t group) const {
  const double part =
      static_cast<double>(std::min(steps, options_.total_iters)) / static_cast<double>(options_.total_iters);
  return base_lr(group) * std::pow(1 - part, options_.power);
}

CosineAnnealingWarmRestarts::CosineAnnealingWarmRestarts(Optimizer& optimizer,
                                                         const CosineAnnealingWarmRestartsOptions& options)
    : Scheduler(optimizer), options_(options) {
  check(options.T_0 > 0, "[CosineAnnealingWarmRestarts] T_0 must be positive but is ", options.T_0,
        "; set it");
  check(options.T_mult >= 1, "[CosineAnnealingWarmRestarts] T_mult must be at least 1 but is ",
        options.T_mult);
  check(options.eta_min >= 0, "[CosineAnnealingWarmRestarts] eta_min must not be negative but is ",
        options.eta_min);
  start();
}
double CosineAnnealingWarmRestarts::lr_at(std::int64_t steps, std::size_t group) const {
  double period = static_cast<double>(options_.T_0), since = static_cast<double>(steps);
  if (options_.T_mult == 1) {
    since = static_cast<double>(steps % options_.T_0);
  } else {
    for (; since >= period; period *= static_cast<double>(options_.T_mult)) since -= period;
  }
  return options_.eta_min +
         (base_lr(group) - options_.eta_min) * (1 + std::cos(std::numbers::pi * since / period)) / 2;
}

// ---- SequentialLR ----

// Each schedule sets the rates of its step 0 when it is made, and OneCycleLR the momentum too. They are
// restored, so that the next schedule starts from the optimizer's own rates.
void SequentialLR::add(const std::function<std::unique_ptr<Scheduler>()>& make) {
  static constexpr const char* changed[] = {"lr", "momentum", "beta1"};
  Optimizer& o = optimizer();
  std::vector<double> before;
  for (std::size_t g = 0; g < num_groups(); ++g)
    for (const char* name : changed) before.push_back(o.has_option(name) ? o.option(g, name) : 0);
  schedules_.push_back(make());
  auto value = before.begin();
  for (std::size_t g = 0; g < num_groups(); ++g)
    for (const char* name : changed) {
      if (o.has_option(name)) o.set_option(g, name, *value);
      ++value;
    }
}

void SequentialLR::begin() {
  check(milestones_.size() + 1 == schedules_.size(), "[SequentialLR] got ", milestones_.size(),
        " milestones and ", schedules_.size(), " schedules; pass one milestone fewer than schedules");
  check(
      std::is_sorted(milestones_.begin(), milestones_.end()) && (milestones_.empty() || milestones_[0] >= 0),
      "[SequentialLR] milestones must not be negative and must ascend; sort them");
  start();
}

SequentialLR::Current SequentialLR::at(std::int64_t steps) const {
  const auto next = std::upper_bound(milestones_.begin(), milestones_.end(), steps);
  const auto index = static_cast<std::size_t>(next - milestones_.begin());
  return {schedules_[index].get(), index == 0 ? steps : steps - milestones_[index - 1]};
}
double SequentialLR::lr_at(std::int64_t steps, std::size_t group) const {
  const Current now = at(steps);
  return now.schedule->lr_at(now.steps, group);
}
void SequentialLR::check_step(std::int64_t steps) const {
  const Current now = at(steps);
  now.schedule->check_step(now.steps);
}
void SequentialLR::set_others(std::int64_t steps) {
  const Current now = at(steps);
  now.schedule->set_others(now.steps);
}
void SequentialLR::set_base_lrs(std::vector<double> rates) {
  for (const auto& schedule : schedules_) schedule->set_base_lrs(rates);
  Scheduler::set_base_lrs(std::move(rates));
}

// ---- ReduceLROnPlateau ----

ReduceLROnPlateau::ReduceLROnPlateau(Optimizer& optimizer, const ReduceLROnPlateauOptions& options)
    : Scheduler(optimizer), options_(options) {
  check(options.factor < 1, "[ReduceLROnPlateau] factor must be less than 1 but is ", options.factor);
  check(options.patience >= 0 && options.cooldown >= 0,
        "[ReduceLROnPlateau] patience and cooldown must not be negative but are ", options.patience, " and ",
        options.cooldown);
  check(options.min_lr >= 0, "[ReduceLROnPlateau] min_lr must not be negative but is ", options.min_lr);
  const double infinity = std::numeric_limits<double>::infinity();
  state_.best = options.mode == PlateauMode::min ? infinity : -infinity;
  for (std::size_t g = 0; g < num_groups(); ++g) state_.rates.push_back(base_lr(g));
  start();
  has_metric_ = false;
}

bool ReduceLROnPlateau::is_better(double metric) const {
  const bool smaller = options_.mode == PlateauMode::min;
  const double margin = smaller ? -options_.threshold : options_.threshold;
  const double limit =
      options_.threshold_mode == ThresholdMode::rel ? state_.best * (1 + margin) : state_.best + margin;
  return smaller ? metric < limit : metric > limit;
}

void ReduceLROnPlateau::step(double metric) {
  const State old = state_;
  // Other code may have changed the rates.
  for (std::size_t g = 0; g < num_groups(); ++g) state_.rates[g] = optimizer().lr(g);
  if (is_better(metric)) {
    state_.best = metric;
    state_.num_bad_epochs = 0;
  } else {
    ++state_.num_bad_epochs;
  }
  if (state_.cooldown_counter > 0) {
    --state_.cooldown_counter;
    state_.num_bad_epochs = 0;
  }
  if (state_.num_bad_epochs > options_.patience) {
    for (double& rate : state_.rates) {
      const double reduced = std::max(rate * options_.factor, options_.min_lr);
      if (rate - reduced > options_.eps) rate = reduced;
    }
    state_.cooldown_counter = options_.cooldown;
    state_.num_bad_epochs = 0;
  }
  has_metric_ = true;
  try {
    Scheduler::step();
  } catch (...) {
    has_metric_ = false;
    state_ = old;
    throw;
  }
  has_metric_ = false;
}

double ReduceLROnPlateau::lr_at(std::int64_t, std::size_t group) const { return state_.rates.at(group); }

void ReduceLROnPlateau::check_step(std::int64_t) const {
  check(has_metric_, "[ReduceLROnPlateau] step() was called without a metric; call step(metric)");
}

StateDict ReduceLROnPlateau::state_dict() const {
  const TensorOptions real(DType::f64, kCPU), integer(DType::i64, kCPU);
  StateDict dict = Scheduler::state_dict();
  dict.emplace_back("best", scalar_tensor(state_.best, real));
  dict.emplace_back("num_bad_epochs", scalar_tensor(state_.num_bad_epochs, integer));
  dict.emplace_back("cooldown_counter", scalar_tensor(state_.cooldown_counter, integer));
  for (std::size_t g = 0; g < num_groups(); ++g)
    dict.emplace_back("lrs." + std::to_string(g), scalar_tensor(state_.rates[g], real));
  return dict;
}

void ReduceLROnPlateau::load_state_dict(const StateDict& dict) {
  const nn::StateDictIndex index(dict);
  StateDict rest;
  for (const auto& entry : dict)
    if (entry.first == "steps" || entry.first.starts_with("base_lrs.")) rest.push_back(entry);
  const auto take = [&](const std::string& key, DType dtype) {
    const Tensor* t = index.find(key);
    check(t && t->defined() && t->numel() == 1 && t->dtype() == dtype,
          "[load_state_dict] the schedule's state "
          "has no ",
          dtype, " number '", key, "'; pass what state_dict() of a ReduceLROnPlateau gave");
    return *t;
  };
  State state;
  state.best = take("best", DType::f64).item();
  state.num_bad_epochs = take("num_bad_epochs", DType::i64).item<std::int64_t>();
  state.cooldown_counter = take("cooldown_counter", DType::i64).item<std::int64_t>();
  for (std::size_t g = 0; g < num_groups(); ++g)
    state.rates.push_back(take("lrs." + std::to_string(g), DType::f64).item());
  std::swap(state_, state);
  has_metric_ = true;
  try {
    Scheduler::load_state_dict(rest);
  } catch (...) {
    has_metric_ = false;
    std::swap(state_, state);
    throw;
  }
  has_metric_ = false;
}

}  // namespace tapestry::optim
