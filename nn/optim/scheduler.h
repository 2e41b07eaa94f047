#pragma once
// The common base of the learning-rate schedules. Each schedule is a function of the number of steps, so a
// restored schedule continues exactly. ReduceLROnPlateau is the exception: it is a function of a metric.
//
//   optim::CosineAnnealingLR schedule(optimizer, {.T_max = epochs});
//   for (...) { train(); schedule.step(); }
//
// factor_schedules.h multiplies the rate by a factor, cyclic_schedules.h moves it along cosines, plateau.h
// follows a metric, and sequential.h runs one schedule after another.
#include <cstdint>
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

/// A Scheduler with an options struct of type O.
template <class O>
class SchedulerWith : public Scheduler {
 public:
  using Options = O;

 protected:
  SchedulerWith(Optimizer& optimizer, const O& options) : Scheduler(optimizer), options_(options) {}

  O options_;
};

}  // namespace tapestry::optim
