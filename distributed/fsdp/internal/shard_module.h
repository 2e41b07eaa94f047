#pragma once
// fully_shard() for the replicas of one process, and for the modules of a stage.
#include <memory>
#include <string>
#include <vector>

#include "tapestry/distributed/fsdp/internal/sharded_unit.h"

namespace tapestry::distributed {

/// Makes the module one unit, as fully_shard() does, for groups.size() replicas. groups[r] is the group in
/// which replica r is a rank. The slots must have one tensor per replica, with equal values; or, if `devices`
/// is not empty, one tensor on any device, whose rows go to devices[r]. Each replica's forward and backward
/// run on a thread whose context has its index, all at the same time.
std::shared_ptr<ShardedUnit> shard_module(nn::Module& module, const FsdpOptions& options,
                                          const Groups& groups, const std::vector<Device>& devices = {});
/// fully_shard() of modules that a function calls one after another, such as a stage of a pipeline, as one
/// sharded model: calls gather ahead for later ones, and a backward pass reduces the gradients of all. The
/// ranks may call different ones of them; while unshard() of the first one lasts, calls belong to one
/// forward.
std::vector<FullyShard> fully_shard_together(const std::vector<nn::Module*>& modules,
                                             const FsdpOptions& options);
/// What shard_module() would refuse in these arguments; empty if nothing.
std::string why_not_shardable(nn::Module& module, const FsdpOptions& options, const Groups& groups,
                              const std::vector<Device>& devices);

}  // namespace tapestry::distributed
