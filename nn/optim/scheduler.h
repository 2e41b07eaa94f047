#pragma once
// Learning rate schedules, PyTorch's. Each is a function of the number of steps taken, so a restored schedule
// goes on exactly where it was.
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

  /// Goes one step on and sets the optimizer's learning rates.
  void step();
  /// Steps taken so far (PyTorch's last_epoch).
  std::int64_t steps() const { return steps_; }
  /// The rates that are set now, one a group.
  const std::vector<double>& last_lr() const { return last_lr_; }

  /// Steps taken and the rates at the start; functions and options are not part of it.
  StateDict state_dict() const;
  /// Goes to a saved position, and sets the rates that belong to it. Throws ValueError if the state is of
  /// something else.
  void load_state_dict(const StateDict& dict);

 protected:
  explicit Scheduler(Optimizer& optimizer);
  /// Sets the rates of step 0; for constructors of derived classes.
  void start() { set_rates(0); }

  /// The learning rate of a group after `steps` steps.
  virtual double lr_at(std::int64_t steps, std::size_t group) const = 0;
  /// What else changes with it (momentum), and what makes a step impossible (ValueError).
  virtual void check_step(std::int64_t) const {}
  virtual void set_others(std::int64_t) {}

  double base_lr(std::size_t group) const { return base_lrs_.at(group); }
  Optimizer& optimizer() const { return optimizer_; }

 private:
  void set_rates(std::int64_t steps);

  Optimizer& optimizer_;
  std::int64_t steps_ = 0;
  std::vector<double> base_lrs_, last_lr_;
};

/// base * fn(steps)
class LambdaLR : public Scheduler {
 public:
  using Factor = std::function<double(std::int64_t)>;
  LambdaLR(Optimizer& optimizer, Factor factor);
  /// One function for each group.
  LambdaLR(Optimizer& optimizer, std::vector<Factor> factors);

 protected:
  double lr_at(std::int64_t steps, std::size_t group) const override;

 private:
  std::vector<Factor> factors_;
};

struct StepLROptions {
  std::int64_t step_size = 0;
  double gamma = 0.1;
};
/// base * gamma^(steps / step_size), rounded down.
class StepLR : public Scheduler {
 public:
  StepLR(Optimizer& optimizer, const StepLROptions& options);

 protected:
  double lr_at(std::int64_t steps, std::size_t group) const override;

 private:
  StepLROptions options_;
};

struct LinearLROptions {
  double start_factor = 1.0 / 3, end_factor = 1;
  std::int64_t total_iters = 5;
};
/// A factor that goes linearly from start_factor to end_factor in total_iters steps, and stays: warm-up.
class LinearLR : public Scheduler {
 public:
  explicit LinearLR(Optimizer& optimizer, const LinearLROptions& options = {});

 protected:
  double lr_at(std::int64_t steps, std::size_t group) const override;

 private:
  LinearLROptions options_;
};

struct CosineAnnealingLROptions {
  std::int64_t T_max = 0;
  double eta_min = 0;
  /// Steps of linear warm-up, from base / warmup_steps, before the cosine's T_max begin. Not in PyTorch,
  /// where it takes a LinearLR and a SequentialLR.
  std::int64_t warmup_steps = 0;
};
/// From base to eta_min along half a cosine in T_max steps, and back in the next T_max (Loshchilov and
/// Hutter, "SGDR", 2017, without restarts).
class CosineAnnealingLR : public Scheduler {
 public:
  CosineAnnealingLR(Optimizer& optimizer, const CosineAnnealingLROptions& options);

 protected:
  double lr_at(std::int64_t steps, std::size_t group) const override;

 private:
  CosineAnnealingLROptions options_;
};

enum class Anneal : std::uint8_t { cos, linear };

struct OneCycleLROptions {
  double max_lr = 0;
  std::int64_t total_steps = 0;  ///< or epochs and steps_per_epoch
  std::int64_t epochs = 0, steps_per_epoch = 0;
  double pct_start = 0.3;  ///< the part of all steps in which the rate rises
  Anneal anneal_strategy = Anneal::cos;
  bool cycle_momentum = true;  ///< moves momentum (SGD) or beta1 (Adam) the other way
  double base_momentum = 0.85, max_momentum = 0.95;
  double div_factor = 25;         ///< the first rate is max_lr / div_factor
  double final_div_factor = 1e4;  ///< the last one is the first / final_div_factor
  bool three_phase = false;       ///< back down to the first rate, then to the last
};
/// One rise and fall over the whole training (Smith and Topin, "Super-convergence", 2018). Step it once a
/// batch.
class OneCycleLR : public Scheduler {
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

  OneCycleLROptions options_;
  std::vector<Phase> phases_;
  const char* momentum_name_ = nullptr;
};

}  // namespace tapestry::optim
