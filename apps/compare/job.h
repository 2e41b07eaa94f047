#pragma once
// Setup of a process in the modes and measurements that use one process per device.
#include <memory>

#include "tapestry/apps/compare/workload.h"
#include "tapestry/core/device.h"
#include "tapestry/distributed/comm/process_group.h"

namespace apps::compare {

/// The device on which a rank computes: cpu:0, because each process has a CPU device of its own, or
/// cuda:rank, because every process sees all GPUs.
tapestry::Device rank_device(const Workload& workload, int rank);

/// Joins the group of all processes. NCCL needs a separate GPU per rank, so ranks that share a GPU or use
/// CPUs get the gloo backend.
std::shared_ptr<tapestry::distributed::ProcessGroup> join_job(const Workload& workload);

}  // namespace apps::compare
