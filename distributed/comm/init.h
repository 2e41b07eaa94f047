#pragma once
// Makes this process a rank of a job.
#include <memory>
#include <string>

#include "tapestry/distributed/comm/environment.h"
#include "tapestry/distributed/comm/process_group.h"

namespace tapestry::distributed {

struct InitOptions {
  /// "gloo", "nccl" or empty. Empty chooses nccl if this library was built with it and each rank of this host
  /// can have its own GPU, otherwise gloo. A world of one rank uses neither, unless nccl is named.
  std::string backend;
  /// "env://" (the launcher's environment variables), "tcp://host:port" or "file:///path". The last two need
  /// `rank` and `world_size`, unless the environment variables give them.
  std::string init_method = "env://";
  int rank = -1;        ///< -1: from the environment variables
  int world_size = -1;  ///< -1: from the environment variables
  GroupOptions group;
};

/// Joins the job. Blocks until all ranks have joined, at most GroupOptions::timeout. Throws ValueError for
/// invalid options or variables, TimeoutError if ranks are missing (it names them), and DistributedError for
/// other failures.
///
/// Under mpirun and torchrun, the first call also starts a thread that ends this process (SIGTERM, then
/// SIGKILL) soon after the launcher has ended; TAPESTRY_END_WITH_LAUNCHER=0 prevents that.
std::shared_ptr<ProcessGroup> init_process_group(const InitOptions& options = {});

}  // namespace tapestry::distributed
