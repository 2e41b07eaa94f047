#pragma once
// Why a step took as long as it did: the chain of spans of which each began when the one before it ended.
#include <cstddef>
#include <vector>

#include "tapestry/apps/compare/result.h"

namespace apps::compare {

/// Which spans of a result waited for which. Read from their times: a span follows the one that ended last
/// before it on its device; after idle time, the span of another device that ended last; a wait follows the
/// collective of its axis that ended it; and a collective follows the device that joined it last. Spans are
/// named by their place in Result::spans.
struct Dependencies {
  std::vector<std::vector<std::size_t>> needs;  ///< per span
  std::vector<std::size_t> critical_path;       ///< from the end of the step to its beginning
};
Dependencies dependencies_of(const Result& result);
/// The same of a simulated step. Spans are named by their place in Prediction::timeline. Devices that share a
/// row reach a collective together.
Dependencies dependencies_of(const planner::Prediction& prediction);

}  // namespace apps::compare
