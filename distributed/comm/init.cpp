#include "tapestry/distributed/comm/init.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "tapestry/core/cuda/device.h"
#include "tapestry/core/error.h"
#include "tapestry/distributed/comm/internal/deadline.h"
#include "tapestry/distributed/comm/internal/launcher_watch.h"
#include "tapestry/distributed/comm/internal/machine.h"
#include "tapestry/distributed/comm/internal/preflight.h"
#include "tapestry/distributed/comm/internal/rendezvous.h"

namespace tapestry::distributed {
namespace {

constexpr Milliseconds kLinger{5'000};  // how long rank 0's store stays for ranks that end later
constexpr Milliseconds kRequest{30'000};
constexpr std::string_view kEnv = "env://", kTcp = "tcp://", kFile = "file://";

/// The environment variables, completed by the options.
Environment who_am_i(const InitOptions& options) {
  Environment e = read_environment();
  if (options.rank < 0 && options.world_size < 0) {
    check(e.launcher != "none" || options.init_method == kEnv, "[init_process_group] ", options.init_method,
          " needs rank and world_size: set them in the options, or RANK and WORLD_SIZE");
    return e;
  }
  check(options.rank >= 0 && options.world_size >= 1 && options.rank < options.world_size,
        "[init_process_group] rank ", options.rank, " and world_size ", options.world_size,
        " in the options are invalid; set both (rank from 0 to world_size - 1) or neither");
  check(e.launcher == "none" || (options.rank == e.rank && options.world_size == e.world_size),
        "[init_process_group] the options say rank ", options.rank, " of ", options.world_size, ", but ",
        e.launcher, " says rank ", e.rank, " of ", e.world_size,
        "; remove rank and world_size from the options");
  e.rank = options.rank;
  e.world_size = options.world_size;
  return e;
}

struct Place {
  std::string host;
  int port = 0;
};

/// The address of the store according to the launcher's variables.
Place place_of(const Environment& e) {
  check(e.master_port > 0, "[init_process_group] rank ", e.rank, " of ", e.world_size, " (", e.launcher,
        "): no port is set; set MASTER_ADDR and MASTER_PORT, the same for all ranks");
  check(!e.master_addr.empty(), "[init_process_group] the ranks are on several hosts and ", e.launcher,
        " does not tell where rank 0 is; set MASTER_ADDR to its host",
        e.launcher == "srun"
            ? " (export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1))"
            : "");
  // If all ranks are on this host, the store uses the loopback address: no name has to be looked up, and
  // other hosts cannot connect.
  if (!e.store_is_running && e.local_world_size == e.world_size) return {loopback_host(), e.master_port};
  return {e.master_addr, e.master_port};
}

/// Parses an address such as "host:port" or "[::1]:port".
Place place_of(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  Place place{std::string(text.substr(0, colon)), 0};
  bool ok = colon != text.npos && !place.host.empty();
  if (ok) {
    const auto [end, error] = std::from_chars(text.data() + colon + 1, text.data() + text.size(), place.port);
    ok = error == std::errc() && end == text.data() + text.size() && place.port >= 1 && place.port <= 65535;
  }
  if (ok && place.host.front() == '[' && place.host.back() == ']')
    place.host = place.host.substr(1, place.host.size() - 2);
  else ok = ok && place.host.find(':') == std::string::npos;
  check(ok, "[init_process_group] init_method \"tcp://", text,
        "\" is invalid; use tcp://host:port or tcp://[address]:port");
  return place;
}

std::shared_ptr<Store> connect(const Environment& e, const Place& place, Milliseconds timeout) {
  const TcpOptions options{
      .secret = e.secret, .connect_timeout = timeout, .request_timeout = std::min(kRequest, timeout)};
  if (e.rank != 0 || e.store_is_running) return tcp_store(place.host, place.port, options);
  // Rank 0 runs the store. If there is a secret, the store listens on all interfaces. It cannot listen on
  // place.host alone, because other ranks may use a name of this host that the host itself cannot resolve.
  const bool here = is_loopback(place.host);
  std::shared_ptr<StoreServer> server =
      start_store_server(here || e.secret.empty() ? place.host : "", place.port, options);
  std::shared_ptr<Store> client = tcp_store(here ? place.host : loopback_host(), place.port, options);
  Store* const store = client.get();
  return {store, [server = std::move(server), client = std::move(client)](Store*) mutable {
            client.reset();
            server->drain(kLinger);
          }};
}

std::shared_ptr<Store> open_store(const InitOptions& options, const Environment& e, Milliseconds timeout) {
  const std::string_view method = options.init_method;
  if (method == kEnv) return connect(e, place_of(e), timeout);
  if (method.starts_with(kTcp)) {
    Environment own = e;
    own.store_is_running = false;  // a store that the launcher runs is at another address
    return connect(own, place_of(method.substr(kTcp.size())), timeout);
  }
  return file_store(std::string(method.substr(kFile.size())));
}

/// Counts the groups that this process has joined. The count is part of the store's keys, so that successive
/// groups do not share keys. All ranks join together, so their counts are equal. If one process runs several
/// ranks, each rank has a count of its own.
class Joined {
 public:
  int operator[](int rank) {
    const std::lock_guard lock(mutex_);
    return counts_[rank];
  }
  void add(int rank) {
    const std::lock_guard lock(mutex_);
    ++counts_[rank];
  }

 private:
  std::mutex mutex_;
  std::map<int, int> counts_;
};
Joined joined;

void check_options(const InitOptions& options) {
  const std::string_view method = options.init_method;
  check(method == kEnv || method.starts_with(kTcp) || method.starts_with("file:///"),
        "[init_process_group] init_method \"", method,
        "\" is not supported; use env://, tcp://host:port or file:///path");
  check(options.backend != "local",
        "[init_process_group] backend \"local\" is for threads of one process; use "
        "run_local_ranks, or the backend gloo between processes");
  check(options.backend.empty() || options.backend == "gloo" || options.backend == "nccl",
        "[init_process_group] backend \"", options.backend,
        "\" is not supported; use gloo, nccl or an empty name");
}

/// The rank's own GPU: the only visible one, or the one with the number of its local rank.
Device device_of(const Environment& e) {
  const int count = device_count(DeviceType::cuda);
  return {DeviceType::cuda, count == 1 ? 0 : e.local_rank};
}

/// If no backend is named, NCCL is used if each rank of this host can have its own GPU. Logical devices on
/// one GPU do not count.
bool uses_nccl(const InitOptions& options, const Environment& e) {
  if (!options.backend.empty()) return options.backend == "nccl";
  if (!built_with_nccl()) return false;
  const int count = device_count(DeviceType::cuda);
  if (count == 1 && std::getenv("CUDA_VISIBLE_DEVICES")) return true;
  std::set<int> gpus;
  for (int i = 0; i < count; ++i) gpus.insert(cuda::device_properties({DeviceType::cuda, i}).gpu);
  return static_cast<int>(gpus.size()) >= e.local_world_size;
}

/// torchrun and mpirun leave their ranks running if they are killed.
void watch_launcher(const Environment& e) {
  if (!ends_with_launcher()) return;
  if (e.launcher == "mpirun") end_with_launcher(e.launcher, "OMPI_COMM_WORLD_RANK");
  if (e.launcher == "torchrun") end_with_launcher(e.launcher, "TORCHELASTIC_RUN_ID");
}

/// Warns about a batch script that requests several tasks but starts the program without srun. This is legal,
/// but probably a mistake.
void note_unused_tasks(const Environment& e) {
  const char* const tasks = std::getenv("SLURM_NTASKS");
  if (e.launcher == "none" && tasks && std::atoi(tasks) > 1)
    std::fprintf(
        stderr,
        "[init_process_group] this Slurm job has %s tasks, but the program was started without srun: "
        "it runs as a world of one rank. Start it with srun.\n",
        tasks);
}

}  // namespace

std::shared_ptr<ProcessGroup> init_process_group(const InitOptions& options) {
  check_options(options);
  const Environment e = who_am_i(options);
  GroupOptions group = options.group;
  if (group.timeout <= Milliseconds(0)) group.timeout = default_timeout();
  const bool nccl = uses_nccl(options, e);
  watch_launcher(e);
  if (e.world_size == 1) {
    note_unused_tasks(e);
    const bool on_gpu = options.backend == "nccl" && built_with_nccl() && device_count(DeviceType::cuda) > 0;
    std::shared_ptr<Backend> alone =
        on_gpu ? nccl_backend(memory_store(), 0, 1, device_of(e), group.timeout) : local_backends(1)[0];
    return make_process_group(std::move(alone), memory_store(), group);
  }
  check<DistributedError>(!nccl || built_with_nccl(),
                          "[init_process_group] this library was built without NCCL; use backend gloo");
  const Deadline deadline = deadline_after(group.timeout);
  const std::shared_ptr<Store> store =
      prefix_store(concat({"start ", e.restart, " group ", joined[e.rank], "/"}),
                   open_store(options, e, left_until(deadline)));
  rendezvous(*store, e.rank, e.world_size, left_until(deadline));
  preflight(*store, inspect_rank(e, nccl ? "nccl" : "gloo"), left_until(deadline));
  joined.add(e.rank);
  std::shared_ptr<Backend> backend =
      nccl ? nccl_backend(prefix_store("nccl/", store), e.rank, e.world_size, device_of(e),
                          left_until(deadline))
           : gloo_backend(prefix_store("gloo/", store), e.rank, e.world_size, left_until(deadline));
  return make_process_group(std::move(backend), prefix_store("group/", store), group);
}

}  // namespace tapestry::distributed
