#pragma once
// Loads a checkpoint in two steps, so that ranks can agree between them.
#include <functional>
#include <string>

#include "tapestry/distributed/checkpoint/sharded_checkpoint.h"

namespace tapestry::distributed::checkpoint {

/// Checks everything that load_sharded() checks before the first change, and throws its errors. Returns the
/// function that loads. `training` must live until then.
std::function<nn::Progress()> prepare_load(const std::string& folder, const ShardedTraining& training,
                                           const LoadShardedOptions& options);

}  // namespace tapestry::distributed::checkpoint
