#include "tapestry/apps/compare/mode.h"

#include <algorithm>

#include "tapestry/apps/common/command_line.h"

namespace apps::compare {

using namespace tapestry;
using distributed::AxisSpec;

namespace {

// The comparison starts the ranks that a mode needs, so axes are over ranks where that is possible.
Mode made(const std::string& name) {
  Mode mode{.name = name, .description = {}, .plan = distributed::plan_strategy(name, true)};
  mode.description = mode.plan.about;
  if (!mode.plan.axes.empty()) mode.description += " (" + distributed::to_string(mode.plan.axes) + ")";
  return mode;
}

// False for short forms of another name: those of an equal text, and "dp" beside "dp-master".
bool is_listed(const distributed::StrategyAlias& alias) {
  const std::string longer = std::string(alias.name) + "-";
  for (const distributed::StrategyAlias& other : distributed::strategy_aliases()) {
    if (std::string_view(other.name).starts_with(longer)) return false;
    if (&other < &alias && std::string_view(other.text) == alias.text && !*alias.text) return false;
  }
  return true;
}

}  // namespace

const std::vector<Mode>& modes() {
  static const std::vector<Mode> all = [] {
    std::vector<Mode> list;
    for (const distributed::StrategyAlias& alias : distributed::strategy_aliases())
      if (is_listed(alias)) list.push_back(made(alias.name));
    std::sort(list.begin(), list.end(), [](const Mode& a, const Mode& b) {
      return std::pair(!a.plan.axes.empty(), a.name) < std::pair(!b.plan.axes.empty(), b.name);
    });
    return list;
  }();
  return all;
}

Mode mode_named(const std::string& name) {
  for (const Mode& known : modes())
    if (known.name == name) return known;
  return made(name);
}

std::vector<AxisSpec> Mode::axes(int devices) const {
  std::vector<AxisSpec> all = plan.axes;
  int known = 1;
  for (const AxisSpec& axis : all) known *= axis.size > 0 ? axis.size : 1;
  for (AxisSpec& axis : all) axis.size = axis.size > 0 ? axis.size : devices / known;
  return all;
}

std::string Mode::stage_axis() const {
  const auto divisions = distributed::divisions_of(plan, /*predictable=*/false);
  for (std::size_t i = 0; i < divisions.size(); ++i)
    if (!divisions[i].schedule.empty()) return plan.axes[i].name;
  return "";
}

int Mode::stages(int devices) const {
  const std::string name = stage_axis();
  for (const AxisSpec& axis : axes(devices))
    if (axis.name == name) return axis.size;
  return 0;
}

std::string Mode::layers(int devices) const { return planner::layers_of(plan, devices); }

int Mode::data_size(int devices) const {
  const auto divisions = distributed::divisions_of(plan, /*predictable=*/false);
  int size = 1;
  for (std::size_t i = 0; i < divisions.size(); ++i)
    if (divisions[i].divides_batch()) size *= axes(devices)[i].size;
  return size;
}

void check_devices(const Mode& mode, int devices) {
  check<UsageError>(mode.plan.axes.empty() || mode.plan.size == 0 || mode.plan.size == devices, "[compare] ",
                    mode.name, " needs ", mode.plan.size, " devices or processes, and --devices is ",
                    devices);
}

}  // namespace apps::compare
