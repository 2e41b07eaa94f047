#pragma once
// The optimizer of a model under a Strategy.
#include <memory>
#include <utility>
#include <vector>

#include "tapestry/distributed/strategy/strategy.h"
#include "tapestry/distributed/zero/zero.h"

namespace tapestry::distributed {

/// The optimizer O of these parameters: O itself, or ZeroRedundancyOptimizer<O> if the strategy divides its
/// state. Call it after Strategy::wrap(), on all ranks.
template <class O>
std::unique_ptr<optim::Optimizer> make_optimizer(const Strategy& strategy,
                                                 std::vector<optim::ParamGroup<typename O::Options>> groups) {
  const OptimizerDivision division = strategy.optimizer_division();
  if (!division.group) return std::make_unique<O>(std::move(groups));
  return std::make_unique<ZeroRedundancyOptimizer<O>>(std::move(groups),
                                                      ZeroOptions{.process_group = division.group,
                                                                  .stage = division.stage,
                                                                  .parts = division.parts,
                                                                  .parts_group = division.parts_group});
}
template <class O>
std::unique_ptr<optim::Optimizer> make_optimizer(const Strategy& strategy,
                                                 std::vector<optim::Parameter> parameters,
                                                 const typename O::Options& options) {
  std::vector<optim::ParamGroup<typename O::Options>> groups;
  groups.push_back({std::move(parameters), options});
  return make_optimizer<O>(strategy, std::move(groups));
}

}  // namespace tapestry::distributed
