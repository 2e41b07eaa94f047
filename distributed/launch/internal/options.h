#pragma once
// Parses the command line of tapestry-run, which uses torchrun's names.
#include <map>
#include <string>
#include <vector>

namespace tapestry::distributed::launch {

/// Environment variables by name.
using Variables = std::map<std::string, std::string>;
Variables this_environment();

/// The numbers that "auto", "cpu" and "gpu" stand for.
struct Machine {
  int cores = 1;
  int gpus = 0;
};
Machine this_machine();

struct LaunchOptions {
  int nproc_per_node = 1;
  int nnodes = 1;
  int node_rank = 0;
  std::string host = "127.0.0.1";  ///< the address of node 0
  int port = 0;                    ///< 0 selects a free port; it is never 0 for several nodes
  int max_restarts = 0;
  double grace_s = 30;  ///< seconds between SIGTERM and SIGKILL
  std::string log_dir;  ///< if empty, all output goes to the terminal
  bool doctor = false;
  bool help = false;
  bool version = false;
  std::vector<std::string> command;  ///< program and its arguments

  int world_size() const { return nnodes * nproc_per_node; }
};

/// Parses the command line without the program's name. Options end at the first argument that is not an
/// option, or at "--". `--nproc_per_node=2` means the same as `--nproc-per-node 2`. Missing options are read
/// from torchrun's variables (PET_NPROC_PER_NODE), and for several nodes also from MASTER_ADDR, MASTER_PORT
/// and SLURM_NODEID. Throws ValueError for unknown, malformed or contradictory options.
LaunchOptions parse_launch_options(const std::vector<std::string>& arguments, const Variables& environment,
                                   const Machine& machine);

/// Returns the text of --help.
std::string launch_help();

}  // namespace tapestry::distributed::launch
