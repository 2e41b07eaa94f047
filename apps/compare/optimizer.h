#pragma once
#include <memory>
#include <string>
#include <vector>

#include "tapestry/apps/compare/workload.h"
#include "tapestry/distributed/strategy/strategy.h"
#include "tapestry/nn/optim/optimizer.h"

namespace apps::compare {

/// The names of the optimizers: "sgd", "adamw".
const std::vector<std::string>& optimizer_names();

/// The workload's optimizer for these parameters. Throws ValueError for an unknown name.
std::unique_ptr<tapestry::optim::Optimizer> make_optimizer(const Workload& workload,
                                                           std::vector<tapestry::nn::Parameter> parameters);

/// The same, whose state the strategy may divide.
std::unique_ptr<tapestry::optim::Optimizer> make_optimizer(const Workload& workload,
                                                           const tapestry::distributed::Strategy& strategy,
                                                           std::vector<tapestry::nn::Parameter> parameters);

/// "SGD", "SGD with momentum 0.9", "AdamW"
std::string optimizer_title(const Workload& workload);

}  // namespace apps::compare
