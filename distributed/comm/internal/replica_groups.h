#pragma once
// Process groups whose ranks are devices of this process.
#include <memory>
#include <string>
#include <vector>

#include "tapestry/core/device.h"
#include "tapestry/distributed/comm/process_group.h"

namespace tapestry::distributed {

using ReplicaGroups = std::vector<std::shared_ptr<ProcessGroup>>;  // one rank per device

/// Throws ValueError or DeviceError unless these devices can be the ranks of one group. `op` begins the text.
void check_replica_devices(const char* op, const std::vector<Device>& devices);
/// Makes the groups. `backend` is "nccl" between GPUs, or "local" through host memory; if it is empty, nccl
/// is used if the library was built with it and each device is a GPU of its own. `options.check` is false if
/// one object makes the calls of all ranks. May be called by any thread.
ReplicaGroups make_replica_groups(const std::vector<Device>& devices, const std::string& backend,
                                  const GroupOptions& options, const std::string& name = "replicas");

}  // namespace tapestry::distributed
