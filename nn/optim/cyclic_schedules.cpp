#include "tapestry/nn/optim/cyclic_schedules.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "tapestry/core/error.h"

namespace tapestry::optim {

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
