#pragma once
// Updates the biases of routers (of mixtures of experts) by the tokens of all ranks.
#include "tapestry/distributed/comm/process_group.h"
#include "tapestry/nn/module.h"

namespace tapestry::distributed {

/// Calls nn::MixtureOfExperts::update_router_bias() of each layer that has a bias, with the sum of the tokens
/// that the ranks of `group` have counted since the last call. Collective: one all-reduce of 8 bytes for each
/// expert. A Strategy does it at the end of gradients(). Without one, call it once for each step of the
/// optimizer, and pass the group of all ranks that compute different samples or positions. The group may
/// include ranks that compute the same ones, if it includes all of them: the update is the same if all counts
/// are doubled.
///
/// Of a model that stages of a pipeline divide, only the layers of this rank's stage are updated. Throws
/// ValueError on all ranks for a layer with parameters that several stages use.
void update_router_bias(const nn::Module& module, ProcessGroup& group);
/// The same if one process computes all samples.
void update_router_bias(const nn::Module& module);
/// True if the module has a layer that update_router_bias() would change, on this rank or on another stage.
/// Throws what update_router_bias() throws.
bool has_router_bias(const nn::Module& module);

}  // namespace tapestry::distributed
