#include "tapestry/distributed/launch/internal/doctor.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "tapestry/core/error.h"
#include "tapestry/core/version.h"
#include "tapestry/distributed/launch/internal/child_environment.h"
#include "tapestry/distributed/launch/internal/container.h"
#include "tapestry/distributed/launch/internal/job_store.h"
#include "tapestry/distributed/launch/internal/process.h"

namespace tapestry::distributed::launch {
namespace {

void print(const char* what, const std::string& text) { std::printf("%-10s%s\n", what, text.c_str()); }

std::string megabytes(std::int64_t bytes) { return std::to_string(bytes >> 20) + " MB"; }

void print_facts(const LaunchOptions& o, const RankReport& r, const Surroundings& seen) {
  std::printf("tapestry %s: %d rank(s), %d on this node, over %s\n", r.version.c_str(), o.world_size(),
              o.nproc_per_node, r.backend.c_str());
  print("host", r.host + (r.host_resolves ? "" : " (has no address)"));
  print("container", seen.container ? "yes, in " + seen.ipc : std::string("no"));
  print("cores", concat({r.cores, ", ", r.threads, " thread(s) a rank"}));
  print("GPUs", concat({r.visible_gpus, " visible, CUDA_VISIBLE_DEVICES ",
                        r.cuda_visible_devices ? "= " + *r.cuda_visible_devices : std::string("not set")}));
  if (r.visible_gpus == 0) print("", seen.why_no_gpu);
  if (!seen.driver.empty()) print("driver", concat({seen.driver, ", ", seen.cuda_file}));
  if (seen.gpus > 0) print("NCCL", seen.nccl.str());
  print("/dev/shm", r.shm_bytes > 0 ? megabytes(r.shm_bytes) : "none");
  print("network", list_of(seen.interfaces));
  print("store", o.port == 0 ? "a free port of " + o.host : concat({o.host, ":", o.port}));
}

/// Checks the store's port on the node that would run the store.
std::optional<Finding> check_store(const LaunchOptions& o, const Variables& environment) try {
  if (o.node_rank == 0) open_store(o, secret_of(o, environment));
  return std::nullopt;
} catch (const Error& e) {
  return Finding{true, e.what()};
}

std::optional<Finding> check_program(const LaunchOptions& o) try {
  if (!o.command.empty()) find_program(o.command.front());
  return std::nullopt;
} catch (const IoError& e) {
  return Finding{true, e.what()};
}

}  // namespace

std::vector<RankReport> expected_reports(const LaunchOptions& o, const Variables& environment) {
  const Job job{.nnodes = o.nnodes,
                .node_rank = o.node_rank,
                .nproc_per_node = o.nproc_per_node,
                .cores = this_machine().cores};
  const std::string backend = this_machine().gpus > 0 ? "nccl" : "gloo";
  std::vector<RankReport> reports;
  for (int local = 0; local < o.nproc_per_node; ++local) {
    Environment e;
    e.rank = job.rank(local);
    e.world_size = job.world_size();
    e.local_rank = local;
    e.local_world_size = o.nproc_per_node;
    reports.push_back(inspect_rank(e, backend));
    const Variables variables = child_environment(environment, job, local, 0);
    reports.back().threads = std::max(1, std::atoi(variables.at("OMP_NUM_THREADS").c_str()));
  }
  return reports;
}

int doctor(const LaunchOptions& o) {
  const Variables environment = this_environment();
  const std::vector<RankReport> reports = expected_reports(o, environment);
  const Surroundings seen = look_around();
  print_facts(o, reports.front(), seen);
  std::vector<Finding> findings = preflight(reports);
  const std::vector<Finding> more = container_findings(seen, reports.front(), o, environment);
  findings.insert(findings.end(), more.begin(), more.end());
  for (const auto& finding : {check_store(o, environment), check_program(o)}) {
    if (finding) findings.push_back(*finding);
  }
  const auto failures =
      std::count_if(findings.begin(), findings.end(), [](const Finding& f) { return f.failure; });
  for (const bool failure : {false, true}) {
    for (const Finding& f : findings) {
      if (f.failure == failure) print(failure ? "FAILURE" : "warning", f.text);
    }
  }
  if (failures > 0) std::printf("%lld failure(s): the job cannot run\n", static_cast<long long>(failures));
  else std::printf("no problem found\n");
  return failures > 0;
}

}  // namespace tapestry::distributed::launch
