#include "tapestry/distributed/launch/internal/container.h"

#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>

#include "tapestry/core/cuda/internal/devices.h"
#include "tapestry/core/cuda/internal/libraries.h"
#include "tapestry/core/error.h"
#include "tapestry/core/internal/limits.h"
#include "tapestry/distributed/comm/internal/fd.h"
#include "tapestry/distributed/comm/internal/sockets.h"

// Sources: NCCL's user guide (Troubleshooting, Environment Variables) and NCCL's source; NVIDIA's guide to
// CUDA compatibility; NVIDIA's notice about containers that lose their GPUs (nvidia-docker issue 1730).
namespace tapestry::distributed::launch {
namespace {

namespace fs = std::filesystem;

/// The IPC namespace of a host: IPC_NS_INIT_INO of <linux/nsfs.h>.
constexpr std::string_view kHostIpc = "ipc:[4026531839]";

// ---- reading ----

bool is_there(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

std::string first_line(const std::string& path) {
  std::string line;
  std::getline(std::ifstream(path), line);
  return line;
}

/// The names in a folder; none if it cannot be read.
std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    names.push_back(it->path().filename().string());
  return names;
}

/// The version in the first line of /proc/driver/nvidia/version, the first word of digits and dots: "NVRM
/// version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023".
std::string driver_version(const std::string& line) {
  std::istringstream words(line);
  for (std::string word; words >> word;)
    if (word.find('.') != word.npos && word.find_first_not_of("0123456789.") == word.npos) return word;
  return "";
}

/// The file of libcuda.so that this process has loaded, else the one that CUDA would find; empty if there is
/// none.
std::string cuda_file(const std::string& root) {
  std::ifstream maps(root + "/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    if (const auto path = line.find('/'); path != line.npos && line.find("/libcuda.so.", path) != line.npos)
      return line.substr(path);
  for (const char* folder : {"/usr/local/cuda/compat", "/usr/lib/x86_64-linux-gnu",
                             "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/local/nvidia/lib64"}) {
    const std::string file = std::string(folder) + "/libcuda.so.1";
    if (is_there(root + file)) return file;
  }
  return "";
}

std::vector<Interface> interfaces_of(const std::string& root) {
  std::vector<Interface> found;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return found;
  for (const ifaddrs* i = list; i; i = i->ifa_next) {
    if (!i->ifa_addr || !(i->ifa_flags & IFF_RUNNING)) continue;
    const int family = i->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const std::string name = i->ifa_name;
    if (std::any_of(found.begin(), found.end(), [&](const Interface& other) { return other.name == name; }))
      continue;
    SocketAddress address;
    address.length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::memcpy(&address.storage, i->ifa_addr, address.length);
    const std::string about = root + "/sys/class/net/" + name;
    found.push_back({name, address.host(), first_line(about + "/iflink") != first_line(about + "/ifindex")});
  }
  freeifaddrs(list);
  return found;
}

void read_gpus(Surroundings& seen, const std::string& root) {
  for (const std::string& name : names_in(root + "/dev"))
    seen.gpu_files +=
        name.starts_with("nvidia") && name.size() > 6 && name.find_first_not_of("0123456789", 6) == name.npos;
  seen.uvm_file = is_there(root + "/dev/nvidia-uvm");
  const Fd control(open((root + "/dev/nvidiactl").c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
  seen.control_error = control.get() < 0 ? errno : 0;
  seen.driver = driver_version(first_line(root + "/proc/driver/nvidia/version"));
  for (const std::string& name : names_in(root + "/sys/bus/pci/devices")) {
    const std::string device = root + "/sys/bus/pci/devices/" + name;
    // 0x03: display controllers, which GPUs without a display are too.
    if (first_line(device + "/vendor") != "0x10de" || !first_line(device + "/class").starts_with("0x03"))
      continue;
    ++seen.pci_gpus;
    seen.translated_gpus += first_line(device + "/iommu_group/type").starts_with("DMA");  // or "identity"
  }
  const cuda::Devices& devices = cuda::devices();
  seen.why_no_gpu = devices.why_none();
  if (devices.count() > 0) seen.gpus = devices.runtime().gpu_count(seen.why_no_gpu);
  for (int a = 0; a < seen.gpus; ++a)
    for (int b = a + 1; b < seen.gpus; ++b)
      if (!devices.runtime().can_access(a, b) || !devices.runtime().can_access(b, a))
        seen.apart.emplace_back(a, b);
  seen.cuda_file = cuda_file(root);  // after CUDA has loaded it
}

// ---- findings ----

std::string value_of(const Variables& variables, const char* name) {
  const auto found = variables.find(name);
  return found == variables.end() ? "" : found->second;
}

/// True if NCCL_SOCKET_IFNAME selects the interface: a list of prefixes, or of names after "=". "^" in front
/// excludes instead.
bool selects(std::string_view list, const std::string& name) {
  const bool exclude = list.starts_with('^');
  if (exclude) list.remove_prefix(1);
  const bool exact = list.starts_with('=');
  if (exact) list.remove_prefix(1);
  std::istringstream entries{std::string(list)};
  bool listed = false;
  for (std::string entry; std::getline(entries, entry, ',');)
    listed |= exact ? name == entry : !entry.empty() && name.starts_with(entry);
  return listed != exclude;
}

class Checks : Findings {
 public:
  Checks(const Surroundings& seen, const RankReport& rank, const LaunchOptions& options,
         const Variables& variables)
      : seen_(seen), rank_(rank), options_(options), variables_(variables) {}

  std::vector<Finding> run() {
    device_files();
    driver_library();
    if (options_.nnodes > 1) network();
    cpu_quota();
    if (seen_.gpus > 0 && options_.world_size() > 1) {
      nccl_library();
      memory();
      if (seen_.gpus > 1) direct_access();
      other_containers();
    }
    return take();
  }

 private:
  bool is_set(const char* name) const { return !value_of(variables_, name).empty(); }

  void device_files() {
    const bool driver = !seen_.driver.empty();
    if (seen_.gpu_files == 0) {
      if (driver || (seen_.container && !seen_.cuda_file.empty()))
        warning(driver ? "the kernel has NVIDIA's driver " + seen_.driver : seen_.cuda_file + " is here",
                ", but there is no /dev/nvidia0, so no GPU can be used: start the container with --gpus all, "
                "which needs ",
                "the NVIDIA Container Toolkit on the host");
    } else if (seen_.control_error != 0) {
      warning("/dev/nvidiactl cannot be opened (", std::strerror(seen_.control_error),
              "), so no GPU can be used: ",
              seen_.control_error == EPERM
                  ? "the container has lost its GPUs, as when systemd reloads its units; start it again, and "
                    "update the "
                    "NVIDIA Container Toolkit"
                  : "start the container with --gpus all, as a user who may open the file");
    } else if (!seen_.uvm_file) {
      warning(
          "/dev/nvidia-uvm is missing, without which CUDA does not start: run nvidia-modprobe -u -c=0 on the "
          "host, and ",
          "start the container again");
    } else if (seen_.gpus == 0 && !seen_.why_no_gpu.starts_with("CUDA_VISIBLE_DEVICES")) {
      warning(seen_.gpu_files, " GPU(s) are in /dev, and CUDA shows none: ", seen_.why_no_gpu,
              "; the driver (", driver ? seen_.driver : "of unknown version",
              ") is the host's: update it there, or use a build for an older CUDA");
    }
  }

  /// Compares the version in the name of libcuda.so with the kernel's driver.
  void driver_library() {
    const auto name = seen_.cuda_file.rfind("libcuda.so.");
    if (name == std::string::npos || seen_.driver.empty()) return;
    const std::string version = seen_.cuda_file.substr(name + 11);
    if (version.find('.') < 3 || version.find('.') == version.npos || version == seen_.driver)
      return;  // such as "1.1"
    warning(seen_.cuda_file, " is of driver ", version, ", and the kernel's driver is ", seen_.driver,
            ": CUDA calls this forward compatibility, supports it on data-center GPUs alone, and fails on "
            "others with error ",
            "803 or 804; update the host's driver, or remove the folder from LD_LIBRARY_PATH. NCCL may then "
            "use memory that ",
            "the older driver does not have: set NCCL_CUMEM_HOST_ENABLE=0 if it fails");
  }

  void nccl_library() {
    const cuda::Library& nccl = seen_.nccl;
    if (!nccl.available()) return failure("NCCL ", nccl.error, "; or use the backend gloo");
    int major = 0, minor = 0, patch = 0;
    std::sscanf(nccl.version.c_str(), "%d.%d.%d", &major, &minor, &patch);
    const int version = major * 10000 + minor * 100 + patch;
    if (!seen_.numa_refused || version < 22400 || value_of(variables_, "NCCL_CUMEM_HOST_ENABLE") == "0")
      return;
    const std::string found =
        concat({"get_mempolicy(2) is not permitted, as in Docker, and NCCL ", nccl.version});
    if (version < 22605)
      warning(found, " may fail to start without it: start the container with --cap-add SYS_NICE, or set ",
              "NCCL_CUMEM_HOST_ENABLE=0");
    else
      warning(found,
              " then shares memory through /dev/shm, which recovers less well from aborts: start the "
              "container with ",
              "--cap-add SYS_NICE");
  }

  void memory() {
    if (seen_.memlock && (seen_.container || seen_.infiniband))
      warning(
          "a process may lock ", *seen_.memlock >> 10,
          " KB of memory (ulimit -l), and NCCL locks the buffers of its ", "transfers",
          seen_.infiniband ? ", so that ibv_reg_mr fails" : "",
          ": start the container with --ulimit memlock=-1, or raise memlock in /etc/security/limits.conf");
    constexpr std::int64_t kLow = std::int64_t{64} << 20;  // as much as Docker gives
    if (options_.nproc_per_node > 1 && rank_.shm_bytes > kLow && seen_.shm_free < kLow)
      warning("/dev/shm has ", seen_.shm_free >> 20, " MB free of ", rank_.shm_bytes >> 20,
              " MB, and NCCL does not start if it is full: remove what earlier jobs left there "
              "(/dev/shm/nccl-*), or start ",
              "the container with a larger --shm-size");
  }

  void direct_access() {
    if (!seen_.apart.empty())
      warning("GPUs ", seen_.apart.front().first, " and ", seen_.apart.front().second,
              " cannot access each other's memory (nor can ", seen_.apart.size() - 1,
              " other pairs; nvidia-smi topo -p2p p ",
              "shows why): NCCL copies through the host's memory, which is slower; with a driver before CUDA "
              "13.0, set ",
              "NCCL_CUMEM_HOST_ENABLE=0 if it fails");
    if (seen_.translated_gpus > 0 && !is_set("NCCL_P2P_DISABLE"))
      warning(
          "an IOMMU translates the addresses of ", seen_.translated_gpus,
          " GPU(s) (iommu_group/type is DMA): with PCI ",
          "access control (ACS), copies between GPUs go through the CPU, and are slow or hang. Compare with ",
          "NCCL_P2P_DISABLE=1; if that helps, disable VT-d or AMD-Vi in the host's BIOS, or ACS where 'sudo "
          "lspci -vvv | ",
          "grep ACSCtl' on the host shows SrcValid+ (not in a virtual machine, which needs ACS)");
    if (seen_.pci_gpus == 0)
      warning("CUDA shows ", seen_.gpus,
              " GPUs, and /sys/bus/pci/devices shows none: NCCL finds there how they are connected, ",
              "and is slower without; mount /sys into the container (-v /sys:/sys:ro)");
  }

  /// A container that has a part of the machine's GPUs.
  void other_containers() {
    if (options_.nnodes == 1 || seen_.ipc.empty() || seen_.ipc == kHostIpc || seen_.pci_gpus <= seen_.gpus)
      return;
    warning(
        "this container has ", seen_.gpus, " of the machine's ", seen_.pci_gpus,
        " GPUs and an IPC namespace of its own (", seen_.ipc,
        "): if another node of the job is a container of the same machine, NCCL reaches its GPUs over the ",
        "network alone; run one container with all GPUs, or give both --ipc=host and the same --hostname");
  }

  void network() {
    const bool nccl = seen_.gpus > 0;
    const auto fits = [&](auto condition) {
      std::vector<Interface> found;
      std::copy_if(seen_.interfaces.begin(), seen_.interfaces.end(), std::back_inserter(found), condition);
      return found;
    };
    const std::string list = value_of(variables_, "NCCL_SOCKET_IFNAME");
    if (nccl && !list.empty() && fits([&](const Interface& i) { return selects(list, i.name); }).empty())
      failure("NCCL_SOCKET_IFNAME is ", list, ", which fits no interface: this host has ",
              list_of(seen_.interfaces),
              "; write a prefix (eth), a name (=eth0) or what to leave out (^docker)");
    const auto usable = fits([](const Interface& i) { return selects("^docker,lo,virbr", i.name); });
    if (usable.empty())
      return failure("no network interface reaches other hosts, this one has ", list_of(seen_.interfaces),
                     ": start the container with --network=host");
    const bool infiniband =
        std::any_of(usable.begin(), usable.end(), [](auto& i) { return i.name.starts_with("ib"); });
    if (nccl && list.empty() && usable.size() > 1 && !infiniband)
      warning("NCCL may use any of ", list_of(usable),
              ", and fails or hangs with one that does not reach the other hosts: ",
              "set NCCL_SOCKET_IFNAME==", usable.front().name,
              ", or the right one, on every host (for Gloo, ", "TAPESTRY_INTERFACE)");
    if (seen_.container && std::all_of(usable.begin(), usable.end(), [](auto& i) { return i.linked; }))
      warning(
          "the container has a network of its own, ", list_of(usable),
          ": other hosts reach it only through a network ",
          "that spans them (Swarm's overlay, Kubernetes); otherwise start the container with --network=host");
  }

  void cpu_quota() {
    const int threads = rank_.threads * options_.nproc_per_node;
    if (seen_.cpus && threads > std::ceil(*seen_.cpus))
      warning("the control group has the time of ", *seen_.cpus, " cores (cpu.max), and ",
              options_.nproc_per_node, " rank(s) compute with ", threads,
              " threads: when the time of a period is used up, the kernel stops all of them; ",
              "start the container with --cpus=", threads, ", or fewer ranks or threads (OMP_NUM_THREADS)");
  }

  const Surroundings& seen_;
  const RankReport& rank_;
  const LaunchOptions& options_;
  const Variables& variables_;
};

}  // namespace

std::string list_of(const std::vector<Interface>& interfaces) {
  std::string text;
  for (const Interface& i : interfaces)
    text += concat({text.empty() ? "" : ", ", i.name, " (", i.address, ")"});
  return text.empty() ? "none" : text;
}

Surroundings look_around(const std::string& root) {
  Surroundings seen;
  std::error_code error;
  seen.ipc = fs::read_symlink(root + "/proc/self/ns/ipc", error).string();
  seen.container = is_there(root + "/.dockerenv") || is_there(root + "/run/.containerenv") ||
                   (!seen.ipc.empty() && seen.ipc != kHostIpc);
  struct statvfs shm {};
  if (statvfs((root + "/dev/shm").c_str(), &shm) == 0)
    seen.shm_free = static_cast<std::int64_t>(shm.f_bavail) * static_cast<std::int64_t>(shm.f_frsize);
  rlimit locked{};
  if (getrlimit(RLIMIT_MEMLOCK, &locked) == 0 && locked.rlim_cur != RLIM_INFINITY)
    seen.memlock = static_cast<std::int64_t>(locked.rlim_cur);
  std::istringstream quota(detail::cgroup_file("cpu.max", root));  // "max 100000" or "150000 100000"
  double time = 0, period = 0;
  if (quota >> time >> period && time > 0 && period > 0) seen.cpus = time / period;
  seen.interfaces = interfaces_of(root);
  for (const std::string& name : names_in(root + "/dev/infiniband"))
    seen.infiniband |= name.starts_with("uverbs");
  seen.numa_refused = syscall(SYS_get_mempolicy, nullptr, nullptr, 0, nullptr, 0) != 0 && errno == EPERM;
  read_gpus(seen, root);
  if (seen.gpus > 0) seen.nccl = cuda::nccl_library().about();
  return seen;
}

std::vector<Finding> container_findings(const Surroundings& seen, const RankReport& rank,
                                        const LaunchOptions& options, const Variables& variables) {
  return Checks(seen, rank, options, variables).run();
}

}  // namespace tapestry::distributed::launch
