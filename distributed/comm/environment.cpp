#include "tapestry/distributed/comm/environment.h"

#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "tapestry/core/error.h"
#include "tapestry/distributed/comm/internal/hash.h"
#include "tapestry/distributed/comm/internal/machine.h"

namespace tapestry::distributed {
namespace {

constexpr int kMostRanks = 1 << 20;

/// An empty variable counts as not set.
std::optional<std::string_view> variable(const char* name) {
  const char* const text = std::getenv(name);
  return text && *text ? std::optional<std::string_view>(text) : std::nullopt;
}

std::optional<int> parse(std::string_view text) {
  int n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  return n;
}

std::optional<int> number(const char* name, int least, int most) {
  const auto text = variable(name);
  if (!text) return {};
  const std::optional<int> n = parse(*text);
  check(n && *n >= least && *n <= most, "[environment] ", name, " is \"", *text,
        "\"; it must be an integer from ", least, " to ", most,
        ". Launchers set it; start the program with a launcher, or unset it");
  return n;
}

int required(const char* name, int least, int most, const char* because) {
  const std::optional<int> n = number(name, least, most);
  check(n.has_value(), "[environment] ", name, " is not set, but ", because, " is; set both or neither");
  return *n;
}

bool flag(const char* name, bool otherwise = false) {
  const auto text = variable(name);
  check(!text || *text == "0" || *text == "1", "[environment] ", name, " is \"", text.value_or(""),
        "\"; set it to 0 or 1");
  return text ? text == "1" : otherwise;
}

bool from_torchrun() { return variable("TORCHELASTIC_RUN_ID").has_value(); }

/// True if torchrun's agent listens at MASTER_PORT with PyTorch's own store.
bool agent_owns_port() {
  const auto text = variable("TORCHELASTIC_USE_AGENT_STORE");
  return text == "True" || text == "true" || text == "1";
}

/// Computes a port from the identity of the job. All ranks of the job get the same port, and other jobs on
/// this host probably get another one. The port is below the range of ephemeral ports.
int port_of(std::string_view job) { return static_cast<int>(20000 + fnv1a(job) % 9000); }

void read_variables(Environment& e) {
  e.launcher = from_torchrun() ? "torchrun" : "variables";
  if (const auto launcher = variable("TAPESTRY_LAUNCHER")) e.launcher = *launcher;
  e.world_size = required("WORLD_SIZE", 1, kMostRanks, "RANK");
  e.rank = required("RANK", 0, kMostRanks, "WORLD_SIZE");

  const auto address = variable("MASTER_ADDR");
  const auto local_size = number("LOCAL_WORLD_SIZE", 1, kMostRanks);
  const auto local_rank = number("LOCAL_RANK", 0, kMostRanks);
  // LOCAL_WORLD_SIZE may be missing if a user set the variables. Then all ranks are on one host if there is
  // no address or a loopback address. Otherwise each rank is on its own host, as in Kubernetes.
  const bool one_host = !address || is_loopback(*address);
  check(local_size || one_host || !local_rank, "[environment] LOCAL_RANK is ", local_rank.value_or(0),
        " and LOCAL_WORLD_SIZE is not set; set it to the number of ranks on this host");
  e.local_world_size = local_size.value_or(one_host ? e.world_size : 1);
  check(local_rank || e.local_world_size == e.world_size || e.local_world_size == 1,
        "[environment] LOCAL_WORLD_SIZE is ", e.local_world_size, " of WORLD_SIZE ", e.world_size,
        ", and LOCAL_RANK is not set; number the ranks of each host from 0 with it");
  e.local_rank = local_rank.value_or(e.local_world_size == e.world_size ? e.rank : 0);
  e.store_is_running = flag("TAPESTRY_STORE_RUNNING");
}

void read_open_mpi(Environment& e) {
  e.launcher = "mpirun";
  e.world_size = required("OMPI_COMM_WORLD_SIZE", 1, kMostRanks, "OMPI_COMM_WORLD_RANK");
  e.rank = required("OMPI_COMM_WORLD_RANK", 0, kMostRanks, "OMPI_COMM_WORLD_SIZE");
  e.local_world_size = required("OMPI_COMM_WORLD_LOCAL_SIZE", 1, kMostRanks, "OMPI_COMM_WORLD_RANK");
  e.local_rank = required("OMPI_COMM_WORLD_LOCAL_RANK", 0, kMostRanks, "OMPI_COMM_WORLD_RANK");
  auto job = variable("PMIX_NAMESPACE");
  if (!job) job = variable("OMPI_MCA_ess_base_jobid");
  if (job) e.master_port = port_of(*job);
}

/// The number of the srun step, or nullopt outside of srun. Batch scripts and interactive shells have no step
/// number, or a reserved one (0xfffffffb), although Slurm sets SLURM_PROCID and SLURM_NTASKS there too.
std::optional<std::string_view> slurm_step() {
  auto step = variable("SLURM_STEP_ID");
  if (!step) step = variable("SLURM_STEPID");
  return step && parse(*step) && variable("SLURM_PROCID") ? step : std::nullopt;
}

/// Parses Slurm's list of tasks per node. "2(x3),1" means two tasks on each of the first three nodes, and one
/// on the fourth.
struct TaskCounts {
  int nodes = 0, tasks = 0;
  int here = 0;  // the tasks on node number `node`; 0 if there is no such node

  TaskCounts(const char* name, std::string_view text, int node) {
    std::string_view rest = text;
    bool ok = true;
    while (ok && !rest.empty()) {
      const std::size_t comma = rest.find(',');
      std::string_view part = rest.substr(0, comma);
      rest = comma == rest.npos ? "" : rest.substr(comma + 1);
      std::optional<int> times = 1;
      if (const std::size_t open = part.find("(x"); open != part.npos && part.ends_with(")")) {
        times = parse(part.substr(open + 2, part.size() - open - 3));
        part = part.substr(0, open);
      }
      const std::optional<int> count = parse(part);
      ok = count && times && *count >= 1 && *times >= 1 && *times <= kMostRanks - nodes &&
           *count <= (kMostRanks - tasks) / *times && (comma == part.npos || !rest.empty());
      if (!ok) break;
      if (node >= nodes && node < nodes + *times) here = *count;
      nodes += *times;
      tasks += *times * *count;
    }
    check(ok, "[environment] ", name, " is \"", text,
          "\", which is not a list of tasks per node such as \"2(x3),1\"; unset it, and set "
          "SLURM_NTASKS_PER_NODE");
  }
};

void read_slurm(Environment& e, std::string_view step) {
  e.launcher = "srun";
  e.rank = *number("SLURM_PROCID", 0, kMostRanks);
  const char* const size = variable("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  e.world_size = required(size, 1, kMostRanks, "SLURM_PROCID");
  e.local_rank = required("SLURM_LOCALID", 0, kMostRanks, "SLURM_PROCID");
  e.local_world_size = 0;
  const int node = number("SLURM_NODEID", 0, kMostRanks).value_or(0);
  for (const char* name : {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"}) {
    const auto text = variable(name);
    if (!text || e.local_world_size > 0) continue;
    const TaskCounts counts(name, *text, node);
    // If the counts do not add up to the world size, the variable describes the whole job and not this step.
    if (counts.tasks == e.world_size) e.local_world_size = counts.here;
  }
  if (e.local_world_size == 0)
    e.local_world_size = number("SLURM_NTASKS_PER_NODE", 1, kMostRanks).value_or(0);
  check(e.local_world_size > 0, "[environment] Slurm does not say how many of the ", e.world_size,
        " ranks are on this host (SLURM_STEP_TASKS_PER_NODE); start them with srun --ntasks-per-node=N");
  if (const auto job = variable("SLURM_JOB_ID"))
    e.master_port = port_of(std::string(*job).append(".").append(step));
}

void check_ranks(const Environment& e) {
  const auto within = [&](const char* what, int rank, const char* of, int size) {
    check(rank < size, "[environment] ", what, " ", rank, " of ", of, " ", size, " (from ", e.launcher,
          "): ranks count from 0, so that the last one is ", size - 1);
  };
  within("rank", e.rank, "world size", e.world_size);
  within("local rank", e.local_rank, "local world size", e.local_world_size);
  check(e.local_world_size <= e.world_size, "[environment] local world size ", e.local_world_size,
        " of world size ", e.world_size, " (from ", e.launcher,
        "): a host cannot run more ranks than the world has; unset variables of an earlier job");
}

void read_address(Environment& e) {
  if (const auto address = variable("MASTER_ADDR")) e.master_addr = *address;
  else if (e.local_world_size < e.world_size) e.master_addr.clear();
  const auto port = number("MASTER_PORT", 1, 65535);
  if (port) e.master_port = *port;
  if (e.store_is_running) {
    check(port && variable("MASTER_ADDR"), "[environment] TAPESTRY_STORE_RUNNING is 1, but ",
          port ? "MASTER_ADDR" : "MASTER_PORT",
          " is not set; set it to the address of the store, or unset TAPESTRY_STORE_RUNNING");
    return;
  }
  if (const auto own = number("TAPESTRY_PORT", 1, 65535)) {
    e.master_port = *own;
  } else if (port && agent_owns_port()) {
    check(*port < 65535,
          "[environment] MASTER_PORT is 65535 and used by torchrun, and there is no next port; "
          "set TAPESTRY_PORT to a free port, the same on all hosts");
    e.master_port = *port + 1;
  }
}

}  // namespace

Environment read_environment() {
  Environment e;
  if (const auto secret = variable("TAPESTRY_SECRET")) e.secret = *secret;
  if (variable("RANK") || variable("WORLD_SIZE")) read_variables(e);
  else if (variable("OMPI_COMM_WORLD_RANK") || variable("OMPI_COMM_WORLD_SIZE")) read_open_mpi(e);
  else if (const auto step = slurm_step()) read_slurm(e, *step);
  check_ranks(e);
  read_address(e);
  const char* const restarts =
      variable("TAPESTRY_RESTART") ? "TAPESTRY_RESTART" : "TORCHELASTIC_RESTART_COUNT";
  e.restart = number(restarts, 0, 1'000'000).value_or(0);
  const char* const most =
      variable("TAPESTRY_MAX_RESTARTS") ? "TAPESTRY_MAX_RESTARTS" : "TORCHELASTIC_MAX_RESTARTS";
  e.max_restarts = number(most, 0, 1'000'000'000).value_or(0);
  return e;
}

std::chrono::milliseconds default_timeout() {
  const auto text = variable("TAPESTRY_TIMEOUT_S");
  if (!text) return std::chrono::seconds(300);
  double seconds = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), seconds);
  check(error == std::errc() && end == text->data() + text->size() && seconds >= 0.001 && seconds <= 1e7,
        "[environment] TAPESTRY_TIMEOUT_S is \"", *text,
        "\"; set it to a number of seconds from 0.001 to 1e7, or unset it");
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

std::optional<bool> check_collectives() {
  if (!std::getenv("TAPESTRY_CHECK_COLLECTIVES")) return std::nullopt;
  return flag("TAPESTRY_CHECK_COLLECTIVES", false);
}

bool shared_memory_enabled() { return flag("TAPESTRY_SHARED_MEMORY", true); }

bool ends_with_launcher() { return flag("TAPESTRY_END_WITH_LAUNCHER", true); }

}  // namespace tapestry::distributed
