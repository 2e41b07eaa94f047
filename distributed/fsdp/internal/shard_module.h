#pragma once
// fully_shard() for the replicas of one process.
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
/// What shard_module() would refuse in these arguments; empty if nothing.
std::string why_not_shardable(nn::Module& module, const FsdpOptions& options, const Groups& groups,
                              const std::vector<Device>& devices);

}  // namespace tapestry::distributed
