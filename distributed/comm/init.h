#pragma once
// From a process to a member of a job.
#include <memory>
#include <string>

#include "tapestry/distributed/comm/environment.h"
#include "tapestry/distributed/comm/process_group.h"

namespace tapestry::distributed {

struct InitOptions {
  /// "gloo", "nccl", or empty: nccl where this library has it and a GPU is there, else gloo. A world of one
  /// needs neither.
  std::string backend;
  /// "env://" (the launcher's variables), "tcp://host:port" or "file:///path"; the latter two need rank and
  /// world_size here unless the variables say them.
  std::string init_method = "env://";
  int rank = -1;        ///< -1: the environment's
  int world_size = -1;  ///< -1: the environment's
  GroupOptions group;
};

/// Joins the job. Blocks until all ranks have, at most GroupOptions::timeout. Throws ValueError for bad
/// options or variables, TimeoutError naming the ranks that did not come, DistributedError otherwise.
std::shared_ptr<ProcessGroup> init_process_group(const InitOptions& options = {});

}  // namespace tapestry::distributed
