#include "tapestry/nn/optim/plateau.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/core/error.h"

namespace tapestry::optim {

ReduceLROnPlateau::ReduceLROnPlateau(Optimizer& optimizer, const ReduceLROnPlateauOptions& options)
    : SchedulerWith(optimizer, options) {
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
