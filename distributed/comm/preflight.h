#pragma once
// What is wrong with a job's machines, said before the first collective fails because of it. Not in tapestry.h:
// init_process_group asks it.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tapestry/distributed/comm/environment.h"
#include "tapestry/distributed/comm/store.h"

namespace tapestry::distributed {

/// What one rank finds around it.
struct RankReport {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  std::string host;           ///< its name
  std::string machine;        ///< what no other machine has, also where containers share a name
  bool host_resolves = true;  ///< the name, to an address
  std::string backend;        ///< "gloo", "nccl"
  std::string version;        ///< of this library
  int visible_gpus = 0;       ///< what CUDA shows this process
  std::optional<std::string> cuda_visible_devices;
  std::int64_t shm_bytes = 0;  ///< size of /dev/shm; 0: there is none
  int cores = 1;               ///< that this process may use
  int threads = 1;             ///< that it will compute with
};

struct Finding {
  bool failure = false;  ///< else a warning: the job will run, but hardly as it should
  std::string text;      ///< with the values found and the remedy
};

/// Looks at this process and its machine.
RankReport inspect_rank(const Environment& environment, const std::string& backend);

/// Holds the reports of a job's ranks (or of those of one node) against one another. Looks at nothing else.
std::vector<Finding> preflight(const std::vector<RankReport>& ranks);

/// What all ranks of a job do together before their first collective: each leaves its report in the store,
/// rank 0 compares. Warnings are printed by rank 0; failures are a DistributedError on every rank. Throws
/// TimeoutError, naming a rank whose report did not come.
void preflight(Store& store, const RankReport& mine, Milliseconds timeout);

/// A report as text, and back; ValueError for what is none.
std::string to_text(const RankReport& report);
RankReport rank_report_from(const std::string& text);

}  // namespace tapestry::distributed
