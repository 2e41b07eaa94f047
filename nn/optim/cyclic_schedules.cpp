#include "tapestry/nn/optim/cyclic_schedules.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "tapestry/core/error.h"

namespace tapestry::optim {

namespace {

// From one value to another along half a cosine, where t goes from 0 to 1.
double along_cosine(double from, double to, double t) {
  return to + (from - to) / 2 * (1 + std::cos(std::numbers::pi * t));
}

// The option that a schedule moves against the rate.
const char* momentum_of(const char* schedule, const Optimizer& optimizer, double base, double most) {
  const char* const name = optimizer.has_option("momentum") ? "momentum" : "beta1";
  check(optimizer.has_option(name), "[", schedule, "] ", optimizer.name(),
        " has neither momentum nor beta1 to cycle; set cycle_momentum = false");
  check(base > 0 && base < 1 && most > 0 && most < 1, "[", schedule,
        "] base_momentum and max_momentum must lie in (0, 1) but are ", base, " and ", most);
  return name;
}
void set_momentum(Optimizer& optimizer, const char* name, double momentum) {
  for (std::size_t g = 0; g < optimizer.num_groups(); ++g) optimizer.set_option(g, name, momentum);
}

}  // namespace

CosineAnnealingLR::CosineAnnealingLR(Optimizer& optimizer, const CosineAnnealingLROptions& options)
    : SchedulerWith(optimizer, options) {
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
  return along_cosine(base, options_.eta_min, t);
}

CosineAnnealingWarmRestarts::CosineAnnealingWarmRestarts(Optimizer& optimizer,
                                                         const CosineAnnealingWarmRestartsOptions& options)
    : SchedulerWith(optimizer, options) {
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
  return along_cosine(base_lr(group), options_.eta_min, since / period);
}

OneCycleLR::OneCycleLR(Optimizer& optimizer, const OneCycleLROptions& options)
    : SchedulerWith(optimizer, options) {
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
  if (o.cycle_momentum)
    momentum_name_ = momentum_of("OneCycleLR", optimizer, o.base_momentum, o.max_momentum);
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
      return along_cosine(phase.*from, phase.*to, t);
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
  if (momentum_name_)
    set_momentum(optimizer(), momentum_name_, value_at(steps, &Phase::from_momentum, &Phase::to_momentum));
}

CyclicLR::CyclicLR(Optimizer& optimizer, const CyclicLROptions& options) : SchedulerWith(optimizer, options) {
  CyclicLROptions& o = options_;
  if (o.step_size_down == 0) o.step_size_down = o.step_size_up;
  check(o.base_lr >= 0 && o.max_lr > 0,
        "[CyclicLR] base_lr must not be negative and max_lr must be positive, but ", "they are ", o.base_lr,
        " and ", o.max_lr, "; set both");
  check(o.step_size_up > 0 && o.step_size_down > 0,
        "[CyclicLR] step_size_up and step_size_down must be positive but are ", o.step_size_up, " and ",
        o.step_size_down);
  if (o.cycle_momentum) momentum_name_ = momentum_of("CyclicLR", optimizer, o.base_momentum, o.max_momentum);
  start();
}
double CyclicLR::height_at(std::int64_t steps) const {
  const CyclicLROptions& o = options_;
  const double up = static_cast<double>(o.step_size_up), total = up + static_cast<double>(o.step_size_down);
  const double at = static_cast<double>(steps), cycle = std::floor(1 + at / total);
  const double x = 1 + at / total - cycle, ratio = up / total;
  const double height = x <= ratio ? x / ratio : (x - 1) / (ratio - 1);
  if (o.scale_fn) return height * o.scale_fn(o.scale_mode == CyclicScale::cycle ? cycle : at);
  if (o.mode == CyclicMode::triangular2) return height * std::pow(2.0, 1 - cycle);
  return o.mode == CyclicMode::exp_range ? height * std::pow(o.gamma, at) : height;
}
double CyclicLR::lr_at(std::int64_t steps, std::size_t) const {
  return options_.base_lr + (options_.max_lr - options_.base_lr) * height_at(steps);
}
void CyclicLR::set_others(std::int64_t steps) {
  const double low = options_.base_momentum, high = options_.max_momentum;
  if (momentum_name_) set_momentum(optimizer(), momentum_name_, high - (high - low) * height_at(steps));
}

}  // namespace tapestry::optim
