#pragma once
// What a mode changes in a training program for one device, from the programs in programs/.
#include <string>
#include <vector>

#include "tapestry/distributed/strategy/strategy.h"

namespace apps::compare {

struct Changes {
  /// The lines that differ, in their order: "-" and a line of the program for one device, "+" and one of the
  /// mode's program.
  std::vector<std::string> lines;
  /// The number of "+": lines of the mode's program that the program for one device does not have.
  int changed_lines = 0;
};

/// The lines by which two texts differ (Hunt, McIlroy, "An algorithm for differential file comparison", 1976:
/// a longest common subsequence stays).
Changes changes_between(const std::string& before, const std::string& after);
/// The program that uses the mode's own class; a Strategy for combinations, and for options that have no
/// program. `text` names the mode with its sizes.
std::string program_of(const tapestry::distributed::StrategyPlan& plan, const std::string& text);
Changes changes_of(const tapestry::distributed::StrategyPlan& plan, const std::string& text);

}  // namespace apps::compare
