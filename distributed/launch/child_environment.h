#pragma once
// The variables that a rank is started with. Not in tapestry.h: for the launcher and its tests.
#include <string>

#include "tapestry/distributed/launch/options.h"

namespace tapestry::distributed::launch {

/// What all ranks of a job on this node have in common.
struct Job {
  int nnodes = 1;
  int node_rank = 0;
  int nproc_per_node = 1;
  std::string master_addr;  ///< where the store listens
  int master_port = 0;
  std::string secret;
  int cores = 1;  ///< of this node

  int world_size() const { return nnodes * nproc_per_node; }
  int rank(int local_rank) const { return node_rank * nproc_per_node + local_rank; }
};

/// `base` and what tells a rank who it is. OMP_NUM_THREADS is the rank's share of the cores unless `base` has
/// it. Variables by which another launcher, around this one, says who *this* process is are left out.
Variables child_environment(Variables base, const Job& job, int local_rank, int attempt);

}  // namespace tapestry::distributed::launch
