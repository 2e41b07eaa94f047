#pragma once
// Schedules that multiply the initial rate by a factor: step functions, straight lines, powers, or any
// function.
#include <cstdint>
#include <functional>
#include <vector>

#include "tapestry/nn/optim/scheduler.h"

namespace tapestry::optim {

struct LambdaLROptions {
  using Schedule = class LambdaLR;
  /// One function for all parameter groups, or one per group.
  std::vector<std::function<double(std::int64_t)>> lr_lambda = {};
};
/// Sets lr = base lr * fn(steps).
class LambdaLR : public Scheduler {
 public:
  using Options = LambdaLROptions;
  using Factor = std::function<double(std::int64_t)>;
  LambdaLR(Optimizer& optimizer, const LambdaLROptions& options);
  LambdaLR(Optimizer& optimizer, Factor factor);
  /// One function for all parameter groups, or one per group.
  LambdaLR(Optimizer& optimizer, std::vector<Factor> factors);

 protected:
  double lr_at(std::int64_t steps, std::size_t group) const override;

 private:
  std::vector<Factor> factors_;
};

struct StepLROptions {
  using Schedule = class StepLR;
  std::int64_t step_size = 0;
  double gamma = 0.1;
};
/// Sets lr = base lr * gamma^floor(steps / step_size).
class StepLR : public SchedulerWith<StepLROptions> {
 public:
  StepLR(Optimizer& optimizer, const StepLROptions& options);

 protected:
  double lr_at(std::int64_t steps, std::size_t group) const override;
};

struct MultiStepLROptions {
  using Schedule = class MultiStepLR;
  /// The steps at which the rate decays. A step that is listed twice decays it twice.
  std::vector<std::int64_t> milestones = {};
  double gamma = 0.1;
};
/// Sets lr = base lr * gamma^(number of milestones <= steps).
class MultiStepLR : public SchedulerWith<MultiStepLROptions> {
 public:
  MultiStepLR(Optimizer& optimizer, const MultiStepLROptions& options);

 protected:
  double lr_at(std::int64_t steps, std::size_t group) const override;
};

struct ExponentialLROptions {
  using Schedule = class ExponentialLR;
  double gamma = 0;
};
/// Sets lr = base lr * gamma^steps.
class ExponentialLR : public SchedulerWith<ExponentialLROptions> {
 public:
  ExponentialLR(Optimizer& optimizer, const ExponentialLROptions& options);

 protected:
  double lr_at(std::int64_t steps, std::size_t group) const override;
};

struct LinearLROptions {
  using Schedule = class LinearLR;
  double start_factor = 1.0 / 3, end_factor = 1;
  std::int64_t total_iters = 5;
};
/// Multiplies the base lr by a factor that goes linearly from start_factor to end_factor in total_iters steps
/// and then stays. It is used for warm-up.
class LinearLR : public SchedulerWith<LinearLROptions> {
 public:
  explicit LinearLR(Optimizer& optimizer, const LinearLROptions& options = {});

 protected:
  double lr_at(std::int64_t steps, std::size_t group) const override;
};

struct ConstantLROptions {
  using Schedule = class ConstantLR;
  double factor = 1.0 / 3;
  std::int64_t total_iters = 5;
};
/// Multiplies the base lr by `factor` for the first total_iters steps.
class ConstantLR : public SchedulerWith<ConstantLROptions> {
 public:
  explicit ConstantLR(Optimizer& optimizer, const ConstantLROptions& options = {});

 protected:
  double lr_at(std::int64_t steps, std::size_t group) const override;
};

struct PolynomialLROptions {
  using Schedule = class PolynomialLR;
  std::int64_t total_iters = 5;
  double power = 1;
};
/// Sets lr = base lr * (1 - steps / total_iters)^power, and 0 after total_iters steps.
class PolynomialLR : public SchedulerWith<PolynomialLROptions> {
 public:
  explicit PolynomialLR(Optimizer& optimizer, const PolynomialLROptions& options = {});

 protected:
  double lr_at(std::int64_t steps, std::size_t group) const override;
};

}  // namespace tapestry::optim
