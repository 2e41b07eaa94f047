#pragma once
// The biases of routers of mixtures of experts, which move by the tokens of all ranks.
#include "tapestry/distributed/comm/process_group.h"
#include "tapestry/nn/module.h"

namespace tapestry::distributed {

/// Calls nn::MixtureOfExperts::update_router_bias() of each layer that has a bias, with the sum of the tokens
/// that the ranks of `group` have counted since the last call. Collective: one all-reduce of 8 bytes for each
/// expert. A Strategy does it at the end of gradients(). Without one, call it once for each step of the
/// optimizer, and pass the group of all ranks that compute different samples or positions. Ranks that compute
/// the same ones may be in it too, if all are: counts that are all doubled move the biases equally.
///
/// Of a model that stages of a pipeline divide, only the layers of this rank's stage are updated. Throws
/// ValueError for a layer that several stages have.
void update_router_bias(const nn::Module& module, ProcessGroup& group);
/// The same if one process computes all samples.
void update_router_bias(const nn::Module& module);
/// True if the module has a layer that update_router_bias() would change, on this rank or on another stage.
bool has_router_bias(const nn::Module& module);

}  // namespace tapestry::distributed
