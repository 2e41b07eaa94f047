#pragma once
// A schedule that follows a metric.
#include <cstdint>
#include <vector>

#include "tapestry/nn/optim/scheduler.h"

namespace tapestry::optim {

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
class ReduceLROnPlateau : public SchedulerWith<ReduceLROnPlateauOptions> {
 public:
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

  State state_;
  bool has_metric_ = true;  // true in the constructor, in step(metric) and in load_state_dict()
};

}  // namespace tapestry::optim
