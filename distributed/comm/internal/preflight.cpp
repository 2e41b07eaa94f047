#include "tapestry/distributed/comm/internal/preflight.h"

#include <netdb.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <sstream>

#include "tapestry/core/cuda/internal/libraries.h"
#include "tapestry/core/device.h"
#include "tapestry/core/error.h"
#include "tapestry/core/threads.h"
#include "tapestry/core/version.h"
#include "tapestry/distributed/comm/internal/deadline.h"
#include "tapestry/distributed/comm/internal/machine.h"

namespace tapestry::distributed {
namespace {

/// Docker's default size of /dev/shm.
constexpr std::int64_t kDockerShm = std::int64_t{64} << 20;

bool resolves(const std::string& host) {
  addrinfo* found = nullptr;
  const bool ok = getaddrinfo(host.c_str(), nullptr, nullptr, &found) == 0;
  if (ok) freeaddrinfo(found);
  return ok;
}

std::int64_t shm_size() {
  struct statvfs about {};
  if (statvfs("/dev/shm", &about) != 0) return 0;
  return static_cast<std::int64_t>(about.f_blocks) * static_cast<std::int64_t>(about.f_frsize);
}

std::int64_t shm_device() {
  struct stat about {};
  return stat("/dev/shm", &about) == 0 ? static_cast<std::int64_t>(about.st_dev) : 0;
}

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> entries;
  std::istringstream in(list);
  for (std::string entry; std::getline(in, entry, ',');) entries.push_back(entry);
  return entries;
}

std::string shown(const RankReport& r) {
  return r.cuda_visible_devices ? "CUDA_VISIBLE_DEVICES=" + *r.cuda_visible_devices
                                : std::string("CUDA_VISIBLE_DEVICES is not set");
}

/// The GPU that a rank uses: the only visible one, or the one with the number of its local rank. "" if there
/// is none.
std::string gpu_of(const RankReport& r) {
  const int index = r.visible_gpus == 1 ? 0 : r.local_rank;
  if (index >= r.visible_gpus) return "";
  if (r.cuda_visible_devices) {
    const auto entries = split(*r.cuda_visible_devices);
    if (index < static_cast<int>(entries.size())) return entries[static_cast<std::size_t>(index)];
  }
  return std::to_string(index);
}

/// Identifies the host: a machine, or a container with its own host name.
std::string host_of(const RankReport& r) { return r.host + " " + r.machine; }

class Checks : Findings {
 public:
  explicit Checks(const std::vector<RankReport>& ranks) : ranks_(ranks) {}

  std::vector<Finding> run() {
    numbers();
    versions();
    for (const RankReport& r : ranks_) gpus(r);
    bound_twice();
    std::map<std::string, std::vector<const RankReport*>> hosts;
    for (const RankReport& r : ranks_) hosts[host_of(r)].push_back(&r);
    for (const auto& [name, members] : hosts) host(members);
    containers();
    return take();
  }

 private:
  void numbers() {
    std::map<int, const RankReport*> by_rank;
    std::map<std::pair<std::string, int>, const RankReport*> by_local_rank;
    std::map<std::string, int> at_host;
    for (const RankReport& r : ranks_) ++at_host[host_of(r)];
    for (const RankReport& r : ranks_) {
      const auto [same, is_new] = by_rank.emplace(r.rank, &r);
      if (!is_new)
        failure("two processes have rank ", r.rank, ", on ", same->second->host, " and on ", r.host,
                "; give each process its own RANK, or start them with tapestry-run");
      if (r.world_size != ranks_.front().world_size)
        failure("rank ", r.rank, " has WORLD_SIZE ", r.world_size, ", rank ", ranks_.front().rank, " has ",
                ranks_.front().world_size, "; set the same WORLD_SIZE on all ranks");
      const auto [twin, first] = by_local_rank.emplace(std::pair(host_of(r), r.local_rank), &r);
      // Equal local ranks are no error if the host has more ranks than LOCAL_WORLD_SIZE: it then simulates
      // several nodes, as tests do.
      if (!first && is_new && at_host[host_of(r)] <= r.local_world_size)
        failure("ranks ", twin->second->rank, " and ", r.rank, " both have local rank ", r.local_rank, " on ",
                r.host, "; LOCAL_RANK numbers the ranks of each host from 0");
    }
  }

  void versions() {
    for (const RankReport& r : ranks_) {
      if (r.version != ranks_.front().version)
        failure("rank ", r.rank, " on ", r.host, " runs tapestry ", r.version, ", rank ", ranks_.front().rank,
                " ", ranks_.front().version, "; install the same on all hosts");
      if (r.backend != ranks_.front().backend)
        failure("rank ", r.rank, " on ", r.host, " uses the backend ", r.backend, ", rank ",
                ranks_.front().rank, " ", ranks_.front().backend,
                "; choose one for all, in InitOptions::backend");
      if (r.nccl != ranks_.front().nccl && !r.nccl.empty() && !ranks_.front().nccl.empty())
        failure("rank ", r.rank, " on ", r.host, " has NCCL ", r.nccl, ", rank ", ranks_.front().rank, " ",
                ranks_.front().nccl, ", and NCCL connects equal versions only; install one on all hosts and ",
                "in all containers");
    }
  }

  /// NCCL takes two ranks for neighbours if their machines, their host names and their /dev/shm are the same.
  void containers() {
    std::map<std::string, const RankReport*> first;
    for (const RankReport& r : ranks_) {
      const RankReport& other = *first.emplace(r.machine, &r).first->second;
      if (r.backend != "nccl" || (r.host == other.host && r.shm_device == other.shm_device)) continue;
      return warning("ranks ", other.rank, " and ", r.rank, " are in two containers of one machine (",
                     other.host, " and ", r.host,
                     "), between which NCCL copies over the network; run one container with all ",
                     "GPUs of the machine, or give both --ipc=host and the same --hostname");
    }
  }

  void gpus(const RankReport& r) {
    const bool needed = r.backend == "nccl";
    if (r.cuda_visible_devices) {
      auto entries = split(*r.cuda_visible_devices);
      std::sort(entries.begin(), entries.end());
      const auto twice = std::adjacent_find(entries.begin(), entries.end());
      if (twice != entries.end())
        failure("rank ", r.rank, ": ", shown(r), " names ", *twice,
                " twice, and CUDA then shows no device; remove one");
      else if (r.visible_gpus == 0 && !entries.empty() && entries.back() != "-1" && needed)
        failure("rank ", r.rank, " on ", r.host, " sees no GPU, though ", shown(r),
                "; check that nvidia-smi lists it, and start a container with --gpus all");
    } else if (r.visible_gpus == 0 && needed) {
      failure("rank ", r.rank, " on ", r.host,
              " sees no GPU; check that nvidia-smi lists one, and start a container ",
              "with --gpus all; or use the backend gloo");
    }
    if (r.visible_gpus > 1 && r.local_rank >= r.visible_gpus) {
      add(needed, "rank ", r.rank, " has local rank ", r.local_rank, " on ", r.host, ", where it sees ",
          r.visible_gpus, " GPUs (", shown(r), "): there is no cuda:", r.local_rank, "; start at most ",
          r.visible_gpus, " ranks there (--nproc-per-node), or make more GPUs visible");
    }
  }

  void bound_twice() {
    std::map<std::pair<std::string, std::string>, const RankReport*> taken;
    for (const RankReport& r : ranks_) {
      const std::string gpu = gpu_of(r);
      if (gpu.empty()) continue;
      const auto [other, first] = taken.emplace(std::pair(r.machine, gpu), &r);
      if (first) continue;
      const auto text = concat({"ranks ", other->second->rank, " and ", r.rank, " on ", r.host,
                                " use the same GPU ", gpu, " (", shown(r), "); "});
      // NCCL refuses two ranks of one host on one GPU. A user can set NCCL_HOSTID to a different value for
      // each rank, which makes NCCL treat them as ranks of different hosts. So this is only a warning if the
      // variable is set.
      if (r.backend == "nccl" && !std::getenv("NCCL_HOSTID"))
        failure(text, "NCCL does not support that: give each rank its own GPU, or use the backend gloo");
      else warning(text, "they share its time and memory");
    }
  }

  void host(const std::vector<const RankReport*>& members) {
    const RankReport& r = *members.front();
    const auto several = static_cast<int>(members.size());
    if (!r.host_resolves)
      warning("the host name ", r.host, " has no address, so other hosts may not find it; add it to ",
              "/etc/hosts, or start the container with --hostname or --add-host");
    if (several > 1 && r.shm_bytes <= kDockerShm) {
      const auto found = r.shm_bytes == 0 ? std::string("there is no /dev/shm")
                                          : concat({"/dev/shm has only ", r.shm_bytes >> 20, " MB"});
      add(r.backend == "nccl", found, " on ", r.host, ", for ", several,
          " ranks: in Docker start the container with --shm-size=1g or --ipc=host, in Kubernetes mount an "
          "emptyDir with medium Memory");
    }
    int threads = 0;
    for (const RankReport* member : members) threads += member->threads;
    if (several > 1 && threads > r.cores)
      warning(several, " ranks on ", r.host, " compute with ", threads, " threads on ", r.cores,
              " cores, which slows all of them; ",
              several > r.cores ? std::string("start fewer (--nproc-per-node)")
                                : concat({"OMP_NUM_THREADS=", r.cores / several,
                                          " gives each rank its share (tapestry-run sets this)"}));
  }

  const std::vector<RankReport>& ranks_;
};

/// Calls field(name, value) for every field, for reading and writing.
template <class Report, class F>
void each_field(Report& r, F&& field) {
  field("rank", r.rank);
  field("world_size", r.world_size);
  field("local_rank", r.local_rank);
  field("local_world_size", r.local_world_size);
  field("host", r.host);
  field("machine", r.machine);
  field("host_resolves", r.host_resolves);
  field("backend", r.backend);
  field("version", r.version);
  field("visible_gpus", r.visible_gpus);
  field("cuda_visible_devices", r.cuda_visible_devices);
  field("nccl", r.nccl);
  field("shm_bytes", r.shm_bytes);
  field("shm_device", r.shm_device);
  field("cores", r.cores);
  field("threads", r.threads);
}

std::string as_text(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');  // a line break ends a field
  return text;
}
std::string as_text(std::int64_t number) { return std::to_string(number); }

void read(const std::string& text, std::string& value) { value = text; }
void read(const std::string& text, std::optional<std::string>& value) { value = text; }
template <class T>
void read(const std::string& text, T& number) {
  std::int64_t n = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, n);
  check(error == std::errc() && stop == end, "[preflight] a rank's report has '", text,
        "' instead of a number; run the same version on all ranks");
  number = static_cast<T>(n);
}

std::string key_of(int rank) { return "preflight/" + std::to_string(rank); }

/// Rank 0's part: compares the reports of all ranks. Returns the failures, or "".
std::string verdict(Store& store, const RankReport& mine, Deadline deadline) {
  std::vector<RankReport> ranks{mine};
  for (int rank = 1; rank < mine.world_size; ++rank)
    ranks.push_back(rank_report_from(store.get(key_of(rank), left_until(deadline))));
  std::string failures;
  for (const Finding& f : preflight(ranks)) {
    if (f.failure) failures += "\n  " + f.text;
    else std::fprintf(stderr, "tapestry: warning: %s\n", f.text.c_str());
  }
  return failures;
}

}  // namespace

RankReport inspect_rank(const Environment& e, const std::string& backend) {
  RankReport r{.rank = e.rank,
               .world_size = e.world_size,
               .local_rank = e.local_rank,
               .local_world_size = e.local_world_size,
               .host = host_name(),
               .machine = machine_id(),
               .backend = backend,
               .version = version(),
               .visible_gpus = device_count(DeviceType::cuda),
               .shm_bytes = shm_size(),
               .shm_device = shm_device(),
               .cores = available_cores(),
               .threads = get_num_threads()};
  r.host_resolves = resolves(r.host);
  if (backend == "nccl") r.nccl = cuda::nccl_library().about().version;
  if (const char* const devices = std::getenv("CUDA_VISIBLE_DEVICES")) r.cuda_visible_devices = devices;
  return r;
}

std::vector<Finding> preflight(const std::vector<RankReport>& ranks) {
  return ranks.empty() ? std::vector<Finding>{} : Checks(ranks).run();
}

std::string to_text(const RankReport& report) {
  std::string text;
  each_field(report, [&](const char* name, const auto& value) {
    if constexpr (requires { value.has_value(); }) {
      if (value) text += name + std::string("=") + as_text(*value) + "\n";
    } else {
      text += name + std::string("=") + as_text(value) + "\n";
    }
  });
  return text;
}

RankReport rank_report_from(const std::string& text) {
  std::map<std::string, std::string, std::less<>> given;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const auto equals = line.find('=');
    check(equals != std::string::npos, "[preflight] '", line.substr(0, 100),
          "' is not a line of a rank's report; run the same version on all ranks");
    given.emplace(line.substr(0, equals), line.substr(equals + 1));
  }
  RankReport report;
  each_field(report, [&](const char* name, auto& value) {
    const auto found = given.find(name);
    if (found != given.end()) read(found->second, value);
  });
  return report;
}

void preflight(Store& store, const RankReport& mine, Milliseconds timeout) {
  const std::string verdict_key = "preflight/verdict";
  if (mine.rank == 0) {
    const std::string failures = verdict(store, mine, deadline_after(timeout));
    store.set(verdict_key, failures);
    check<DistributedError>(failures.empty(), "[preflight] the job cannot run:", failures);
    return;
  }
  store.set(key_of(mine.rank), to_text(mine));
  const std::string failures = store.get(verdict_key, timeout);
  check<DistributedError>(failures.empty(), "[preflight] the job cannot run:", failures);
}

}  // namespace tapestry::distributed
