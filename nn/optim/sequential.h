#pragma once
// Several schedules one after another.
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "tapestry/nn/optim/scheduler.h"

namespace tapestry::optim {

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

  /// Also sets the momentum and beta1 that the schedules before the current one have left.
  void load_state_dict(const StateDict& dict) override;

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

}  // namespace tapestry::optim
