#pragma once
// What --doctor says about CUDA and NCCL in a container, or on a host that is set up like one.
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tapestry/core/cuda/libraries.h"
#include "tapestry/distributed/comm/internal/preflight.h"
#include "tapestry/distributed/launch/internal/options.h"

namespace tapestry::distributed::launch {

/// A network interface that runs and has an address.
struct Interface {
  std::string name;
  std::string address;
  bool linked =
      false;  ///< it is linked to an interface of another network namespace, like a container's eth0
};

/// "eth0 (10.0.0.7), lo (127.0.0.1)"
std::string list_of(const std::vector<Interface>& interfaces);

/// What this system gives to CUDA and NCCL.
struct Surroundings {
  bool container = false;
  std::string ipc;                      ///< the IPC namespace, such as "ipc:[4026531839]"; empty if unknown
  std::int64_t shm_free = 0;            ///< free bytes of /dev/shm
  std::optional<std::int64_t> memlock;  ///< bytes that a process may lock; none if there is no limit
  std::optional<double> cpus;           ///< the CPU quota of the control group, if it has one
  std::vector<Interface> interfaces;
  bool infiniband = false;                ///< an InfiniBand or RoCE device can be opened by name
  bool numa_refused = false;              ///< get_mempolicy(2) is not permitted
  int gpu_files = 0;                      ///< the number of files /dev/nvidia0, /dev/nvidia1, ...
  bool uvm_file = false;                  ///< /dev/nvidia-uvm is there
  int control_error = 0;                  ///< errno of opening /dev/nvidiactl
  int pci_gpus = 0, translated_gpus = 0;  ///< NVIDIA's GPUs in /sys, and those behind a translating IOMMU
  std::string driver;      ///< the version of the kernel's NVIDIA driver; empty if there is none
  std::string cuda_file;   ///< the file of libcuda.so, as it is loaded, or where it lies
  int gpus = 0;            ///< GPUs that CUDA shows
  std::string why_no_gpu;  ///< CUDA's reason if it shows none
  std::vector<std::pair<int, int>> apart;  ///< pairs of GPUs that cannot access each other's memory
  cuda::Library nccl;
};

/// Reads the surroundings. `root` is the folder of /proc, /sys and /dev, which tests set.
Surroundings look_around(const std::string& root = "");

/// Returns what is wrong for a job of `options`. `rank` is the report of one of this node's ranks;
/// `variables` are those of the launcher.
std::vector<Finding> container_findings(const Surroundings& seen, const RankReport& rank,
                                        const LaunchOptions& options, const Variables& variables);

}  // namespace tapestry::distributed::launch
