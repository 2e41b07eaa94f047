#pragma once
// Modes, and measurements, with a process a device.
#include <memory>

#include "tapestry/apps/compare/workload.h"
#include "tapestry/distributed/comm/process_group.h"

namespace apps::compare {

/// Where a rank computes. A process has one CPU; of GPUs it sees them all, and takes its own.
tapestry::Device rank_device(const Workload& workload, int rank);

/// The group of all processes. NCCL wants a GPU for each rank; others exchange through the host's memory.
std::shared_ptr<tapestry::distributed::ProcessGroup> join_job(const Workload& workload);

}  // namespace apps::compare
