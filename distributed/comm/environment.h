#pragma once
// The rank of this process in its job, from the environment variables that launchers set.
#include <optional>
#include <string>

#include "tapestry/core/clock.h"

namespace tapestry::distributed {

/// torchrun and tapestry-run set RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
/// Open MPI and Slurm set other variables, and no MASTER_*. Without these, the address is this host if all
/// ranks are on it, and the port is computed from the job's id. If the variables of several launchers are
/// set, RANK etc. take precedence over Open MPI's, and Open MPI's over Slurm's. A Slurm batch script or
/// interactive shell is a world of one rank, because only srun starts ranks.
struct Environment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  std::string master_addr = "127.0.0.1";  ///< empty if not given and ranks are on several hosts
  int master_port = 0;                    ///< 0 if not given
  /// True if the launcher (tapestry-run) already runs the store at master_addr:master_port. Ranks then only
  /// connect.
  bool store_is_running = false;
  std::string secret;  ///< TAPESTRY_SECRET, or empty
  /// The launcher that set the variables: "tapestry-run", "torchrun", "mpirun", "srun", "variables" (set by
  /// hand), or "none" (a world of one rank).
  std::string launcher = "none";
  int restart = 0;       ///< how often the launcher has restarted this job
  int max_restarts = 0;  ///< how often the launcher restarts this job at most
};

/// Reads and checks the variables. Throws ValueError if one is missing, not a number, or contradicts another
/// (rank 3 of 2). The text names the variable and its value.
Environment read_environment();

/// How long a collective may take: TAPESTRY_TIMEOUT_S seconds, or 300 s if it is not set. Throws ValueError
/// if it is not a number of seconds.
std::chrono::milliseconds default_timeout();

/// Whether ranks of one host may communicate through shared memory: false if TAPESTRY_SHARED_MEMORY is 0.
/// Throws ValueError unless it is 0, 1 or not set.
bool shared_memory_enabled();

/// TAPESTRY_CHECK_COLLECTIVES, or nullopt if it is not set: see GroupOptions::check. Throws ValueError unless
/// it is 0 or 1.
std::optional<bool> check_collectives();

/// Whether a rank ends when the mpirun or torchrun that started it has ended: false if
/// TAPESTRY_END_WITH_LAUNCHER is 0. Throws ValueError unless it is 0, 1 or not set.
bool ends_with_launcher();

}  // namespace tapestry::distributed
