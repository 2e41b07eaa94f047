#pragma once
// The command line of tapestry-run, with torchrun's names. Not in tapestry.h: for the launcher and its tests.
#include <map>
#include <string>
#include <vector>

namespace tapestry::distributed::launch {

/// Environment variables by name.
using Variables = std::map<std::string, std::string>;
Variables this_environment();

/// What "auto", "cpu" and "gpu" stand for.
struct Machine {
  int cores = 1;
  int gpus = 0;
};
Machine this_machine();

struct LaunchOptions {
  int nproc_per_node = 1;
  int nnodes = 1;
  int node_rank = 0;
  std::string host = "127.0.0.1";  ///< where node 0 can be reached
  int port = 0;                    ///< 0: a free one; never 0 for several nodes
  int max_restarts = 0;
  double grace_s = 5;   ///< from asking the ranks to end until SIGKILL
  std::string log_dir;  ///< empty: all output goes to the terminal
  bool doctor = false;
  bool help = false;
  std::vector<std::string> command;  ///< program and its arguments

  int world_size() const { return nnodes * nproc_per_node; }
};

/// `arguments` are those after the program's name. Options end at the first argument that is none, or at
/// "--". `--nproc_per_node=2` is `--nproc-per-node 2`. What is not given is taken from torchrun's variables
/// (PET_NPROC_PER_NODE), for several nodes also from MASTER_ADDR, MASTER_PORT and SLURM_NODEID. Throws
/// ValueError for what is unknown, malformed or contradictory.
LaunchOptions parse_launch_options(const std::vector<std::string>& arguments, const Variables& environment,
                                   const Machine& machine);

/// The text of --help.
std::string launch_help();

}  // namespace tapestry::distributed::launch
