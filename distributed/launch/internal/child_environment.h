#pragma once
// Sets the environment variables of a rank.
#include <string>

#include "tapestry/distributed/launch/internal/options.h"

namespace tapestry::distributed::launch {

/// The values that all ranks of a job on this node share.
struct Job {
  int nnodes = 1;
  int node_rank = 0;
  int nproc_per_node = 1;
  std::string master_addr;  ///< the address of the store
  int master_port = 0;
  std::string secret;
  int cores = 1;  ///< the number of cores of this node
  int max_restarts = 0;

  int world_size() const { return nnodes * nproc_per_node; }
  int rank(int local_rank) const { return node_rank * nproc_per_node + local_rank; }
};

/// Returns `base` plus the variables that identify a rank. OMP_NUM_THREADS is the rank's share of the cores,
/// unless `base` sets it. Throws ValueError if `base` sets it to no number of threads. Variables that an
/// outer launcher set to identify *this* process are removed.
Variables child_environment(Variables base, const Job& job, int local_rank, int attempt);

}  // namespace tapestry::distributed::launch
