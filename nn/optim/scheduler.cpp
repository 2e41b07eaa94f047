#include "tapestry/nn/optim/scheduler.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/core/error.h"

namespace tapestry::optim {

Scheduler::Scheduler(Optimizer& optimizer) : optimizer_(optimizer) {
  for (std::size_t g = 0; g < optimizer.num_groups(); ++g) base_lrs_.push_back(optimizer.lr(g));
}

void Scheduler::set_rates(std::int64_t steps) {
  check(optimizer_.num_groups() == base_lrs_.size(), "[Scheduler] the optimizer has ",
        optimizer_.num_groups(), " groups now and had ", base_lrs_.size(),
        "; add groups before making the schedule");
  check_step(steps);
  std::vector<double> rates, old;
  for (std::size_t g = 0; g < base_lrs_.size(); ++g) {
    rates.push_back(lr_at(steps, g));
    old.push_back(optimizer_.lr(g));
  }
  try {
    for (std::size_t g = 0; g < rates.size(); ++g) optimizer_.set_lr(g, rates[g]);
    set_others(steps);
  } catch (...) {  // the optimizer refused a rate after it had accepted others: restore them
    for (std::size_t g = 0; g < old.size(); ++g) optimizer_.set_lr(g, old[g]);
    throw;
  }
  last_lr_ = std::move(rates);
  steps_ = steps;
}

void Scheduler::step() { set_rates(steps_ + 1); }

StateDict Scheduler::state_dict() const {
  const TensorOptions on_cpu(DType::f64, kCPU);
  StateDict dict{{"steps", scalar_tensor(steps_, {DType::i64, kCPU})}};
  for (std::size_t g = 0; g < base_lrs_.size(); ++g)
    dict.emplace_back("base_lrs." + std::to_string(g), scalar_tensor(base_lrs_[g], on_cpu));
  return dict;
}

void Scheduler::load_state_dict(const StateDict& dict) {
  const nn::StateDictIndex index(dict);
  const auto number = [&](const std::string& key) {
    const Tensor* t = index.find(key);
    check(t && t->defined() && t->numel() == 1, "[load_state_dict] the schedule's state has no number '", key,
          "'; pass what state_dict() of such a schedule gave");
    return t;
  };
  const Tensor* const saved_steps = number("steps");
  check(saved_steps->dtype() == DType::i64, "[load_state_dict] the schedule's number of steps is ",
        saved_steps->dtype(), ", not int64; pass what state_dict() of such a schedule gave");
  const auto steps = saved_steps->item<std::int64_t>();
  check(steps >= 0, "[load_state_dict] the schedule's number of steps is ", steps, "; it cannot be negative");
  check(dict.size() == base_lrs_.size() + 1, "[load_state_dict] the schedule's state has ", dict.size() - 1,
        " groups and the optimizer ", base_lrs_.size(),
        "; pass the state of a schedule over the same groups");
  std::vector<double> rates;
  for (std::size_t g = 0; g < base_lrs_.size(); ++g) {
    const std::string key = "base_lrs." + std::to_string(g);
    const Tensor* const rate = number(key);
    check(is_floating(rate->dtype()) && rate->item() >= 0 && std::isfinite(rate->item()),
          "[load_state_dict] the schedule's ", key, " is ", rate->item(), " of dtype ", rate->dtype(),
          ", not a floating-point number of at least 0; pass what state_dict() of such a schedule gave");
    rates.push_back(rate->item());
  }
  const std::vector<double> old = base_lrs_;
  set_base_lrs(std::move(rates));
  try {
    set_rates(steps);
  } catch (...) {
    set_base_lrs(old);
    throw;
  }
}

LambdaLR::LambdaLR(Optimizer& optimizer, Factor factor)
    : LambdaLR(optimizer, std::vector<Factor>(optimizer.num_groups(), factor)) {}
LambdaLR::LambdaLR(Optimizer& optimizer, std::vector<Factor> factors)
    : Scheduler(optimizer), factors_(std::move(factors)) {
  check(factors_.size() == optimizer.num_groups(), "[LambdaLR] got ", factors_.size(), " functions for ",
        optimizer.num_groups(), " groups; pass one for each");
  for (const Factor& f : factors_)
    check(static_cast<bool>(f), "[LambdaLR] a function is empty; pass one that can be called");
  start();
}
double LambdaLR::lr_at(std::int64_t steps, std::size_t group) const {
  return base_lr(group) * factors_[group](steps);
}

StepLR::StepLR(Optimizer& optimizer, const StepLROptions& options) : Scheduler(optimizer), options_(options) {
  check(options.step_size > 0, "[StepLR] step_size must be positive but is ", options.step_size, "; set it");
  start();
}
double StepLR::lr_at(std::int64_t steps, std::size_t group) const {
  return base_lr(group) * std::pow(options_.gamma, static_cast<double>(steps / options_.step_size));
}

LinearLR::LinearLR(Optimizer& optimizer, const LinearLROptions& options)
    : Scheduler(optimizer), options_(options) {
  check(options.start_factor > 0 && options.start_factor <= 1,
        "[LinearLR] start_factor must lie in (0, 1] but is ", options.start_factor);
  check(options.end_factor >= 0 && options.end_factor <= 1,
        "[LinearLR] end_factor must lie in [0, 1] but is ", options.end_factor);
  check(options.total_iters > 0, "[LinearLR] total_iters must be positive but is ", options.total_iters);
  start();
}
double LinearLR::lr_at(std::int64_t steps, std::size_t group) const {
  const double part =
      static_cast<double>(std::min(steps, options_.total_iters)) / static_cast<double>(options_.total_iters);
  return base_lr(group) * (options_.start_factor + (options_.end_factor - options_.start_factor) * part);
}

CosineAnnealingLR::CosineAnnealingLR(Optimizer& optimizer, const CosineAnnealingLROptions& options)
    : Scheduler(optimizer), options_(options) {
  check(options.T_max > 0, "[CosineAnnealingLR] T_max must be positive but is ", options.T_max, "; set it");
  check(options.warmup_steps >= 0, "[CosineAnnealingLR] warmup_steps must not be negative but is ",
        options.warmup_steps);
  check(options.eta_min >= 0, "[CosineAnnealingLR] eta_min must not be negative but is ", options.eta_min);
  start();
}
double CosineAnnealingLR::lr_at(std::int64_t steps, std::size_t group) const {
  const double base = base_lr(group);
  if (steps < options_.warmup_steps)
    return base * static_cast<double>(steps + 1) / static_cast<double>(options_.warmup_steps);
  const double t = static_cast<double>(steps - options_.warmup_steps) / static_cast<double>(options_.T_max);
  return options_.eta_min + (base - options_.eta_min) * (1 + std::cos(std::numbers::pi * t)) / 2;
}

OneCycleLR::OneCycleLR(Optimizer& optimizer, const OneCycleLROptions& options)
    : Scheduler(optimizer), options_(options) {
  if (options_.total_steps == 0 && options_.epochs > 0)
    options_.total_steps = options_.epochs * options_.steps_per_epoch;
  const OneCycleLROptions& o = options_;
  check(o.max_lr > 0, "[OneCycleLR] max_lr must be positive but is ", o.max_lr, "; set it");
  check(o.total_steps > 0, "[OneCycleLR] total_steps must be positive but is ", o.total_steps,
        "; set it, or epochs and steps_per_epoch");
  check(o.pct_start >= 0 && o.pct_start <= 1, "[OneCycleLR] pct_start must lie in [0, 1] but is ",
        o.pct_start);
  check(o.div_factor > 0 && o.final_div_factor > 0,
        "[OneCycleLR] div_factor and final_div_factor must be positive but are ", o.div_factor, " and ",
        o.final_div_factor);
  if (o.cycle_momentum) {
    momentum_name_ = optimizer.has_option("momentum") ? "momentum" : "beta1";
    check(optimizer.has_option(momentum_name_), "[OneCycleLR] ", optimizer.name(),
          " has neither momentum nor beta1 to cycle; set cycle_momentum = false");
    check(o.base_momentum > 0 && o.base_momentum < 1 && o.max_momentum > 0 && o.max_momentum < 1,
          "[OneCycleLR] base_momentum and max_momentum must lie in (0, 1) but are ", o.base_momentum, " and ",
          o.max_momentum);
  }
  const double first = o.max_lr / o.div_factor, last = first / o.final_div_factor;
  const double total = static_cast<double>(o.total_steps), up = o.pct_start * total - 1;
  const double low = o.base_momentum, high = o.max_momentum;
  if (o.three_phase)
    phases_ = {{up, first, o.max_lr, high, low},
               {2 * o.pct_start * total - 2, o.max_lr, first, low, high},
               {total - 1, first, last, high, high}};
  else phases_ = {{up, first, o.max_lr, high, low}, {total - 1, o.max_lr, last, low, high}};
  start();
}

double OneCycleLR::value_at(std::int64_t steps, double Phase::*from, double Phase::*to) const {
  const double at = static_cast<double>(steps);
  double begin = 0;
  for (const Phase& phase : phases_) {
    if (at <= phase.end_step || &phase == &phases_.back()) {
      const double t = phase.end_step > begin ? std::min((at - begin) / (phase.end_step - begin), 1.0) : 1;
      if (options_.anneal_strategy == Anneal::linear) return phase.*from + (phase.*to - phase.*from) * t;
      return phase.*to + (phase.*from - phase.*to) / 2 * (1 + std::cos(std::numbers::pi * t));
    }
    begin = phase.end_step;
  }
  return phases_.back().*to;
}

void OneCycleLR::check_step(std::int64_t steps) const {
  // A call of step() after the last batch is allowed, as in PyTorch, because a loop that calls step() once
  // per batch makes it. The rate then stays at its final value. PyTorch's rate rises again.
  check(steps <= options_.total_steps, "[OneCycleLR] step ", steps, " is beyond the ", options_.total_steps,
        " steps of the schedule; set total_steps to the number of optimizer steps");
}
double OneCycleLR::lr_at(std::int64_t steps, std::size_t) const {
  return value_at(steps, &Phase::from_lr, &Phase::to_lr);
}
void OneCycleLR::set_others(std::int64_t steps) {
  if (!momentum_name_) return;
  const double momentum = value_at(steps, &Phase::from_momentum, &Phase::to_momentum);
  for (std::size_t g = 0; g < optimizer().num_groups(); ++g)
    optimizer().set_option(g, momentum_name_, momentum);
}

}  // namespace tapestry::optim
