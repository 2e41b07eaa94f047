#include "tapestry/distributed/launch/internal/child_environment.h"

#include <algorithm>

#include "tapestry/core/error.h"
#include "tapestry/core/internal/omp_threads.h"

namespace tapestry::distributed::launch {

Variables child_environment(Variables base, const Job& job, int local_rank, int attempt) {
  std::erase_if(base, [](const auto& entry) {
    const std::string& name = entry.first;
    return name.starts_with("TORCHELASTIC_") || name.starts_with("PET_") || name == "TAPESTRY_PORT";
  });
  std::string& threads = base["OMP_NUM_THREADS"];
  if (threads.empty()) threads = std::to_string(std::max(1, job.cores / job.nproc_per_node));
  check(detail::omp_threads(threads.c_str()).has_value(), "[tapestry-run] OMP_NUM_THREADS is \"", threads,
        "\"; set it to the number of threads of a rank, at least 1, or unset it: each rank then gets its "
        "share of the cores");
  for (const auto& [name, value] : Variables{
           {"RANK", std::to_string(job.rank(local_rank))},
           {"LOCAL_RANK", std::to_string(local_rank)},
           {"WORLD_SIZE", std::to_string(job.world_size())},
           {"LOCAL_WORLD_SIZE", std::to_string(job.nproc_per_node)},
           {"NODE_RANK", std::to_string(job.node_rank)},
           {"GROUP_RANK", std::to_string(job.node_rank)},  // torchrun's name for NODE_RANK
           {"MASTER_ADDR", job.master_addr},
           {"MASTER_PORT", std::to_string(job.master_port)},
           {"TAPESTRY_LAUNCHER", "tapestry-run"},
           {"TAPESTRY_STORE_RUNNING", "1"},
           {"TAPESTRY_SECRET", job.secret},
           {"TAPESTRY_RESTART", std::to_string(attempt)},
           {"TAPESTRY_MAX_RESTARTS", std::to_string(job.max_restarts)},
       })
    base[name] = value;
  return base;
}

}  // namespace tapestry::distributed::launch
