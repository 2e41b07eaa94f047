#include "tapestry/nn/optim/factor_schedules.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "tapestry/core/error.h"

namespace tapestry::optim {

LambdaLR::LambdaLR(Optimizer& optimizer, const LambdaLROptions& options)
    : LambdaLR(optimizer, options.lr_lambda) {}
LambdaLR::LambdaLR(Optimizer& optimizer, Factor factor)
    : LambdaLR(optimizer, std::vector<Factor>{std::move(factor)}) {}
LambdaLR::LambdaLR(Optimizer& optimizer, std::vector<Factor> factors)
    : Scheduler(optimizer), factors_(std::move(factors)) {
  if (factors_.size() == 1) factors_.resize(optimizer.num_groups(), Factor(factors_.front()));
  check(factors_.size() == optimizer.num_groups(), "[LambdaLR] got ", factors_.size(), " functions for ",
        optimizer.num_groups(), " groups; pass one for each");
  for (const Factor& f : factors_)
    check(static_cast<bool>(f), "[LambdaLR] a function is empty; pass one that can be called");
  start();
}
double LambdaLR::lr_at(std::int64_t steps, std::size_t group) const {
  return base_lr(group) * factors_[group](steps);
}

StepLR::StepLR(Optimizer& optimizer, const StepLROptions& options) : SchedulerWith(optimizer, options) {
  check(options.step_size > 0, "[StepLR] step_size must be positive but is ", options.step_size, "; set it");
  start();
}
double StepLR::lr_at(std::int64_t steps, std::size_t group) const {
  return base_lr(group) * std::pow(options_.gamma, static_cast<double>(steps / options_.step_size));
}

MultiStepLR::MultiStepLR(Optimizer& optimizer, const MultiStepLROptions& options)
    : SchedulerWith(optimizer, options) {
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
    : SchedulerWith(optimizer, options) {
  check(options.gamma > 0, "[ExponentialLR] gamma must be positive but is ", options.gamma, "; set it");
  start();
}
double ExponentialLR::lr_at(std::int64_t steps, std::size_t group) const {
  return base_lr(group) * std::pow(options_.gamma, static_cast<double>(steps));
}

LinearLR::LinearLR(Optimizer& optimizer, const LinearLROptions& options) : SchedulerWith(optimizer, options) {
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

ConstantLR::ConstantLR(Optimizer& optimizer, const ConstantLROptions& options)
    : SchedulerWith(optimizer, options) {
  check(options.factor >= 0 && options.factor <= 1, "[ConstantLR] factor must lie in [0, 1] but is ",
        options.factor);
  check(options.total_iters >= 0, "[ConstantLR] total_iters must not be negative but is ",
        options.total_iters);
  start();
}
double ConstantLR::lr_at(std::int64_t steps, std::size_t group) const {
  return base_lr(group) * (steps < options_.total_iters ? options_.factor : 1);
}

PolynomialLR::PolynomialLR(Optimizer& optimizer, const PolynomialLROptions& options)
    : SchedulerWith(optimizer, options) {
  check(options.total_iters > 0, "[PolynomialLR] total_iters must be positive but is ", options.total_iters);
  check(options.power >= 0, "[PolynomialLR] power must not be negative but is ", options.power);
  start();
}
double PolynomialLR::lr_at(std::int64_t steps, std::size_t group) const {
  const double part =
      static_cast<double>(std::min(steps, options_.total_iters)) / static_cast<double>(options_.total_iters);
  return base_lr(group) * std::pow(1 - part, options_.power);
}

}  // namespace tapestry::optim
