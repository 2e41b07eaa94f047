#pragma once
// Leaves each rank the parameters of its own stage.
#include <memory>
#include <string>
#include <vector>

#include "tapestry/distributed/comm/process_group.h"
#include "tapestry/distributed/pipeline/stage.h"

namespace tapestry::distributed {

/// Frees what only stages of other ranks use: their slots get a Layout with Cut::kHeld and stay in the model,
/// without elements. So optimizers, clipping and checkpoints take the whole model on every rank. stages[i] is
/// the stage of rank i of `group`. All other tensors on the meta device get memory on the device of this
/// rank's stage, and their initial values. Returns PipelineOptions::tied: the names of each parameter that
/// several stages use. Throws ValueError if stages share a buffer, or if the model is replicated or sharded.
std::vector<std::vector<std::string>> keep_own_stage(nn::Module& model, const std::vector<Stage>& stages,
                                                     const std::shared_ptr<ProcessGroup>& group);

}  // namespace tapestry::distributed
