#pragma once
// Schedules in which the rate falls along half a cosine, once or several times, or rises and falls.
#include <cstdint>
#include <functional>
#include <vector>

#include "tapestry/nn/optim/scheduler.h"

namespace tapestry::optim {

struct CosineAnnealingLROptions {
  using Schedule = class CosineAnnealingLR;
  std::int64_t T_max = 0;
  double eta_min = 0;
  /// The number of linear warm-up steps, from base lr / warmup_steps, before the cosine starts. PyTorch needs
  /// a LinearLR and a SequentialLR for this.
  std::int64_t warmup_steps = 0;
};
/// Goes from the base lr to eta_min along half a cosine in T_max steps, and back in the next T_max steps
/// (Loshchilov and Hutter, "SGDR", 2017, without restarts).
class CosineAnnealingLR : public SchedulerWith<CosineAnnealingLROptions> {
 public:
  CosineAnnealingLR(Optimizer& optimizer, const CosineAnnealingLROptions& options);

 protected:
  double lr_at(std::int64_t steps, std::size_t group) const override;
};

struct CosineAnnealingWarmRestartsOptions {
  using Schedule = class CosineAnnealingWarmRestarts;
  std::int64_t T_0 = 0;     ///< the number of steps until the first restart
  std::int64_t T_mult = 1;  ///< each period is T_mult times as long as the period before it
  double eta_min = 0;
};
/// Goes from the base lr to eta_min along half a cosine, and then starts again at the base lr (Loshchilov and
/// Hutter, "SGDR: stochastic gradient descent with warm restarts", 2017).
class CosineAnnealingWarmRestarts : public SchedulerWith<CosineAnnealingWarmRestartsOptions> {
 public:
  CosineAnnealingWarmRestarts(Optimizer& optimizer, const CosineAnnealingWarmRestartsOptions& options);

 protected:
  double lr_at(std::int64_t steps, std::size_t group) const override;
};

enum class Anneal : std::uint8_t { cos, linear };

struct OneCycleLROptions {
  using Schedule = class OneCycleLR;
  double max_lr = 0;
  std::int64_t total_steps = 0;  ///< alternatively, set epochs and steps_per_epoch
  std::int64_t epochs = 0, steps_per_epoch = 0;
  double pct_start = 0.3;  ///< the fraction of steps in which the rate rises
  Anneal anneal_strategy = Anneal::cos;
  bool cycle_momentum = true;  ///< moves momentum (SGD) or beta1 (Adam) in the opposite direction
  double base_momentum = 0.85, max_momentum = 0.95;
  double div_factor = 25;         ///< the first rate is max_lr / div_factor
  double final_div_factor = 1e4;  ///< the last rate is the first rate / final_div_factor
  /// If true, the rate falls in two phases: first back to the first rate, and then to the last rate.
  bool three_phase = false;
};
/// The rate rises once and falls once over the whole training (Smith and Topin, "Super-convergence", 2018).
/// Call step() once per batch.
class OneCycleLR : public SchedulerWith<OneCycleLROptions> {
 public:
  OneCycleLR(Optimizer& optimizer, const OneCycleLROptions& options);

 protected:
  double lr_at(std::int64_t steps, std::size_t group) const override;
  void check_step(std::int64_t steps) const override;
  void set_others(std::int64_t steps) override;

 private:
  struct Phase {
    double end_step, from_lr, to_lr, from_momentum, to_momentum;
  };
  double value_at(std::int64_t steps, double Phase::*from, double Phase::*to) const;

  std::vector<Phase> phases_;
  const char* momentum_name_ = nullptr;
};

enum class CyclicMode : std::uint8_t { triangular, triangular2, exp_range };
enum class CyclicScale : std::uint8_t { cycle, iterations };

struct CyclicLROptions {
  using Schedule = class CyclicLR;
  double base_lr = 0, max_lr = 0;
  std::int64_t step_size_up = 2000;
  std::int64_t step_size_down = 0;  ///< 0 stands for step_size_up
  /// How the peaks shrink: not at all, by 1/2 per cycle, or by gamma per step.
  CyclicMode mode = CyclicMode::triangular;
  double gamma = 1;
  /// Scales the peaks instead of `mode`. Its argument is the number of the cycle, from 1, or of the step.
  std::function<double(double)> scale_fn = {};
  CyclicScale scale_mode = CyclicScale::cycle;
  bool cycle_momentum = true;  ///< moves momentum (SGD) or beta1 (Adam) in the opposite direction
  double base_momentum = 0.8, max_momentum = 0.9;
};
/// The rate rises from base_lr to max_lr in step_size_up steps and falls back, again and again (Smith,
/// "Cyclical learning rates for training neural networks", 2017). Call step() once per batch.
class CyclicLR : public SchedulerWith<CyclicLROptions> {
 public:
  CyclicLR(Optimizer& optimizer, const CyclicLROptions& options);

 protected:
  double lr_at(std::int64_t steps, std::size_t group) const override;
  void set_others(std::int64_t steps) override;

 private:
  /// The position between the lower and the upper limit, from 0 to the scale of the cycle.
  double height_at(std::int64_t steps) const;

  const char* momentum_name_ = nullptr;
};

}  // namespace tapestry::optim
