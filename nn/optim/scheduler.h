#pragma once
// Learning-rate schedules with PyTorch's names. Each one is a function of the number of steps, so a restored
// schedule continues exactly. ReduceLROnPlateau is the exception: it is a function of a metric.
//
//   optim::CosineAnnealingLR schedule(optimizer, {.T_max = epochs});
//   for (...) { train(); schedule.step(); }
#include <cstdint>
#include <functional>
#include <vector>

#include "tapestry/nn/optim/optimizer.h"

namespace tapestry::optim {

class Scheduler {
 public:
  virtual ~Scheduler() = default;
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  /// Advances by one step and sets the optimizer's learning rates.
  void step();
  /// The number of steps so far (PyTorch's last_epoch).
  std::int64_t steps() const { return steps_; }
  /// The current learning rates, one per parameter group.
  const std::vector<double>& last_lr() const { return last_lr_; }

  /// Returns the number of steps and the initial rates. Functions and options are not saved.
  virtual StateDict state_dict() const;
  /// Moves to the saved position and sets its learning rates. Throws ValueError if the state does not fit
  /// this schedule.
  virtual void load_state_dict(const StateDict& dict);

 protected:
  explicit Scheduler(Optimizer& optimizer);
  /// Sets the rates of step 0. Derived classes call it at the end of their constructors.
  void start() { set_rates(0); }

  /// Returns the learning rate of a group after `steps` steps.
  virtual double lr_at(std::int64_t steps, std::size_t group) const = 0;
  /// step() calls this function. Derived classes override it to change other options (momentum), or to throw
  /// ValueError if the step is impossible.
  virtual void check_step(std::int64_t) const {}
  virtual void set_others(std::int64_t) {}

  /// The rates from which the schedule starts, one per parameter group.
  virtual void set_base_lrs(std::vector<double> rates) { base_lrs_ = std::move(rates); }
  double base_lr(std::size_t group) const { return base_lrs_.at(group); }
  Optimizer& optimizer() const { return optimizer_; }
  std::size_t num_groups() const { return base_lrs_.size(); }

 private:
  friend class SequentialLR;
  void set_rates(std::int64_t steps);

  Optimizer& optimizer_;
  std::int64_t steps_ = 0;
  std::vector<double> base_lrs_, last_lr_;
};

/// Sets lr = base lr * fn(steps).
class LambdaLR : public Scheduler {
 public:
  using Factor = std::function<double(std::int64_t)>;
  LambdaLR(Optimizer& optimizer, Factor factor);
  /// One function per parameter group.
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
class StepLR : public Scheduler {
 public:
  using Options = StepLROptions;
  StepLR(Optimizer& optimizer, const StepLROptions& options);

 protected:
  double lr_at(std::int64_t steps, std::size_t group) const override;

 private:
  StepLROptions options_;
};

struct LinearLROptions {
  using Schedule = class LinearLR;
  double start_factor = 1.0 / 3, end_factor = 1;
  std::int64_t total_iters = 5;
};
/// Multiplies the base lr by a factor that goes linearly from start_factor to end_factor in total_iters steps
/// and then stays. It is used for warm-up.
class LinearLR : public Scheduler {
 public:
  using Options = LinearLROptions;
  explicit LinearLR(Optimizer& optimizer, const LinearLROptions& options = {});

 protected:
  double lr_at(std::int64_t steps, std::size_t group) const override;

 private:
  LinearLROptions options_;
};

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
class CosineAnnealingLR : public Scheduler {
 public:
  using Options = CosineAnnealingLROptions;
  CosineAnnealingLR(Optimizer& optimizer, const CosineAnnealingLROptions& options);

 protected:
  double lr_at(std::int64_t steps, std::size_t group) const override;

 private:
  CosineAnnealingLROptions options_;
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
class OneCycleLR : public Scheduler {
 public:
  using Options = OneCycleLROptions;
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

  OneCycleLROptions options_;
  std::vector<Phase> phases_;
  const char* momentum_name_ = nullptr;
};

}  // namespace tapestry::optim
