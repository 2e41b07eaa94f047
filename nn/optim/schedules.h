#pragma once
// The learning-rate schedules that scheduler.h does not have: by milestones, exponential, polynomial, cosine
// with warm restarts, by a metric, and in sequence.
#include <memory>
#include <type_traits>

#include "tapestry/nn/optim/scheduler.h"

namespace tapestry::optim {

struct MultiStepLROptions {
  using Schedule = class MultiStepLR;
  /// The steps at which the rate decays. A step that is listed twice decays it twice.
  std::vector<std::int64_t> milestones = {};
  double gamma = 0.1;
};
/// Sets lr = base lr * gamma^(number of milestones <= steps).
class MultiStepLR : public Scheduler {
 public:
  using Options = MultiStepLROptions;
  MultiStepLR(Optimizer& optimizer, const MultiStepLROptions& options);

 protected:
  double lr_at(std::int64_t steps, std::size_t group) const override;

 private:
  MultiStepLROptions options_;
};

struct ExponentialLROptions {
  using Schedule = class ExponentialLR;
  double gamma = 0;
};
/// Sets lr = base lr * gamma^steps.
class ExponentialLR : public Scheduler {
 public:
  using Options = ExponentialLROptions;
  ExponentialLR(Optimizer& optimizer, const ExponentialLROptions& options);

 protected:
  double lr_at(std::int64_t steps, std::size_t group) const override;

 private:
  ExponentialLROptions options_;
};

struct PolynomialLROptions {
  using Schedule = class PolynomialLR;
  std::int64_t total_iters = 5;
  double power = 1;
};
/// Sets lr = base lr * (1 - steps / total_iters)^power, and 0 after total_iters steps.
class PolynomialLR : public Scheduler {
 public:
  using Options = PolynomialLROptions;
  explicit PolynomialLR(Optimizer& optimizer, const PolynomialLROptions& options = {});

 protected:
  double lr_at(std::int64_t steps, std::size_t group) const override;

 private:
  PolynomialLROptions options_;
};

struct CosineAnnealingWarmRestartsOptions {
  using Schedule = class CosineAnnealingWarmRestarts;
  std::int64_t T_0 = 0;     ///< the number of steps until the first restart
  std::int64_t T_mult = 1;  ///< each period is T_mult times as long as the period before it
  double eta_min = 0;
};
/// Goes from the base lr to eta_min along half a cosine, and then starts again at the base lr (Loshchilov and
/// Hutter, "SGDR: stochastic gradient descent with warm restarts", 2017).
class CosineAnnealingWarmRestarts : public Scheduler {
 public:
  using Options = CosineAnnealingWarmRestartsOptions;
  CosineAnnealingWarmRestarts(Optimizer& optimizer, const CosineAnnealingWarmRestartsOptions& options);

 protected:
  double lr_at(std::int64_t steps, std::size_t group) const override;

 private:
  CosineAnnealingWarmRestartsOptions options_;
};

struct SequentialLROptions {
  /// milestones[i] is the step at which schedule i + 1 starts, at its own step 0.
  std::vector<std::int64_t> milestones = {};
};
/// Runs several schedules one after another. The options of each schedule follow the milestones. All
/// schedules start from the rates that the optimizer has now:
///
///   optim::SequentialLR schedule(optimizer, {.milestones = {100}},
///                                optim::LinearLR::Options{.total_iters = 100},
///                                optim::CosineAnnealingLR::Options{.T_max = 900});
class SequentialLR : public Scheduler {
 public:
  using Options = SequentialLROptions;
  template <class... O>
  SequentialLR(Optimizer& optimizer, const SequentialLROptions& options, const O&... schedules)
      : Scheduler(optimizer), milestones_(options.milestones) {
    static_assert(sizeof...(O) > 0, "pass the options of one schedule or more");
    (add([&] { return std::make_unique<typename O::Schedule>(optimizer, schedules); }), ...);
    begin();
  }

 protected:
  double lr_at(std::int64_t steps, std::size_t group) const override;
  void check_step(std::int64_t steps) const override;
  void set_others(std::int64_t steps) override;
  void set_base_lrs(std::vector<double> rates) override;

 private:
  /// The schedule of a step, and the number of steps since the schedule started.
  struct Current {
    Scheduler* schedule;
    std::int64_t steps;
  };
  Current at(std::int64_t steps) const;
  void add(const std::function<std::unique_ptr<Scheduler>()>& make);
  void begin();

  std::vector<std::int64_t> milestones_;
  std::vector<std::unique_ptr<Scheduler>> schedules_;
};

enum class PlateauMode : std::uint8_t { min, max };
enum class ThresholdMode : std::uint8_t { rel, abs };

struct ReduceLROnPlateauOptions {
  PlateauMode mode = PlateauMode::min;  ///< whether a smaller or a larger metric is better
  double factor = 0.1;
  std::int64_t patience = 10;  ///< the number of steps without improvement that are tolerated
  double threshold = 1e-4;     ///< an improvement must be larger than this
  /// `rel`: the threshold is a fraction of the best metric; `abs`: it is a difference.
  ThresholdMode threshold_mode = ThresholdMode::rel;
  std::int64_t cooldown = 0;  ///< the number of steps after a reduction in which no step counts as bad
  double min_lr = 0;
  double eps = 1e-8;  ///< a reduction by less than this is skipped
};
/// Multiplies the rates by `factor` if a metric has stopped improving. Call step(metric) after each
/// evaluation. Throws ValueError if step() is called without a metric.
class ReduceLROnPlateau : public Scheduler {
 public:
  using Options = ReduceLROnPlateauOptions;
  explicit ReduceLROnPlateau(Optimizer& optimizer, const ReduceLROnPlateauOptions& options = {});

  void step(double metric);
  double best() const { return state_.best; }
  std::int64_t num_bad_epochs() const { return state_.num_bad_epochs; }

  /// The state also has the current rates, the best metric and the counters.
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& dict) override;

 protected:
  double lr_at(std::int64_t steps, std::size_t group) const override;
  void check_step(std::int64_t steps) const override;

 private:
  bool is_better(double metric) const;
  struct State {
    double best = 0;
    std::int64_t num_bad_epochs = 0, cooldown_counter = 0;
    std::vector<double> rates;
  };

  ReduceLROnPlateauOptions options_;
  State state_;
  bool has_metric_ = true;  // true in the constructor, in step(metric) and in load_state_dict()
};

}  // namespace tapestry::optim
