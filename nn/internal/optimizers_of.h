#pragma once
// Finds the optimizers of parameters, so that strategies can compare what the ranks' optimizers will do.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tapestry/nn/optim/optimizer.h"

namespace tapestry::optim {

/// The optimizers that have one of these parameters, each once, in the order of their first parameter in
/// `parameters`. They exist until their owners destroy them.
std::vector<Optimizer*> optimizers_of(const std::vector<std::pair<std::string, nn::TensorSlot>>& parameters);
/// Changes whenever an optimizer of this process gets parameters or is destroyed.
std::uint64_t optimizers_version();

/// Sets steps(), for an optimizer that takes over the state of another rank's.
void set_steps(Optimizer& optimizer, std::uint64_t steps);

/// Called by Optimizer.
void enlist(Optimizer& optimizer, const std::vector<Parameter>& parameters);
void delist(Optimizer& optimizer);

}  // namespace tapestry::optim
