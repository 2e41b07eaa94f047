#pragma once
#include <vector>

namespace apps::compare {

/// How many items each of `parts` parts gets, in order and at least one, so that the largest sum of costs is
/// as small as can be; of several such splits the one whose first parts have the fewest items. Throws
/// ValueError for fewer items than parts, or costs that are negative or not finite.
std::vector<int> balanced_split(const std::vector<double>& costs, int parts);

}  // namespace apps::compare
