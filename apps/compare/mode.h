#pragma once
// A mode is one way to distribute training: a distributed::Strategy, by one of its older names or by its
// text.
#include <string>
#include <vector>

#include "tapestry/apps/compare/workload.h"
#include "tapestry/distributed/strategy/strategy.h"

namespace apps::compare {

struct Mode {
  std::string name;         ///< for --modes, and in reports
  std::string description;  ///< for --help and the HTML page
  tapestry::distributed::StrategyPlan plan;

  /// If true, run as a job of tapestry-run's launcher.
  bool one_process_per_device() const { return !plan.axes.empty() && !plan.over_devices; }
  bool splits_model() const { return plan.splits_model; }
  /// The axis whose devices have stages of the model; empty if the model is not split.
  std::string stage_axis() const;
  /// The number of stages on this number of devices; 0 if the model is not split.
  int stages(int devices) const;
  /// The axes that divide layers, see planner::layers_of(); empty if none do.
  std::string layers(int devices) const;
  /// How many devices have samples of their own.
  int data_size(int devices) const;
  /// The axes on this number of devices, where no size is "what is left".
  std::vector<tapestry::distributed::AxisSpec> axes(int devices) const;
};

/// The modes with older names: "single" first, the others sorted by name.
const std::vector<Mode>& modes();
/// The mode of a name, or of a strategy's text. Throws ValueError with a list of all names if it is neither.
Mode mode_named(const std::string& name);
/// Throws UsageError unless the mode can run on this number of devices.
void check_devices(const Mode& mode, int devices);

}  // namespace apps::compare
