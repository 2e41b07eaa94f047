#pragma once
// Who this process is in its job, from the variables that launchers set.
#include <chrono>
#include <optional>
#include <string>

namespace tapestry::distributed {

/// torchrun and tapestry-run set RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT;
/// Open MPI and Slurm have names of their own and set no MASTER_*: then the address is this host if all ranks
/// are on it, and the port follows from the job's id. Where several launchers' variables are there, RANK and
/// its kin win, then Open MPI's, then Slurm's. A Slurm batch script or interactive shell is a world of one:
/// only srun starts ranks.
struct Environment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  std::string master_addr = "127.0.0.1";  ///< empty: not given, and not all ranks are on this host
  int master_port = 0;                    ///< 0: none was given
  /// The launcher already listens at master_addr:master_port with a store of ours (tapestry-run does); nobody
  /// else may.
  bool store_is_running = false;
  std::string secret;  ///< TAPESTRY_SECRET, else empty
  /// "tapestry-run", "torchrun", "mpirun", "srun", "variables", or "none": a world of one
  std::string launcher = "none";
  int restart = 0;  ///< how many times the launcher has started this job before
};

/// Reads and checks them. Throws ValueError for what is missing, not a number, or contradictory (rank 3 of
/// 2), naming the variable, its value and the remedy.
Environment read_environment();

/// TAPESTRY_TIMEOUT_S, else 300 s: how long a collective may take. Throws ValueError for what is no number of
/// seconds.
std::chrono::milliseconds default_timeout();

/// False if TAPESTRY_SHARED_MEMORY is 0: whether ranks of one host may exchange through memory that they
/// share. Throws ValueError for what is neither 0 nor 1.
bool shared_memory_enabled();

/// TAPESTRY_CHECK_COLLECTIVES, or nullopt if it is not set: see GroupOptions::check. Throws ValueError unless
/// it is 0 or 1.
std::optional<bool> check_collectives();

}  // namespace tapestry::distributed
