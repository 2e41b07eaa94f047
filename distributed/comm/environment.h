#pragma once
// Who this process is in its job, from the variables that launchers set.
#include <string>

namespace tapestry::distributed {

/// torchrun and tapestry-run set RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT;
/// Open MPI and Slurm have names of their own and set no MASTER_*: then the address is this host if all ranks
/// are on it, and the port follows from the job's id.
struct Environment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  std::string master_addr = "127.0.0.1";
  int master_port = 0;  ///< 0: none was given
  /// The launcher already listens at master_addr:master_port with a store of ours (tapestry-run does); nobody
  /// else may.
  bool store_is_running = false;
  std::string secret;  ///< TAPESTRY_SECRET, else empty
  std::string
      launcher;  ///< "tapestry-run", "torchrun", "mpirun", "srun", "variables", or "none": a world of one
};

/// Reads and checks them. Throws ValueError for what is missing, not a number, or contradictory (rank 3 of
/// 2), naming the variable, its value and the remedy.
Environment read_environment();

}  // namespace tapestry::distributed
