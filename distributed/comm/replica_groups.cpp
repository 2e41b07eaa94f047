#include <algorithm>
#include <exception>
#include <set>
#include <thread>
#include <utility>

#include "tapestry/core/cuda/device.h"
#include "tapestry/core/error.h"
#include "tapestry/core/internal/limits.h"
#include "tapestry/distributed/comm/internal/replica_groups.h"

namespace tapestry::distributed {
namespace {

bool have_a_gpu_each(const std::vector<Device>& devices) {
  std::set<int> gpus;
  for (const Device d : devices)
    if (d.is_cuda()) gpus.insert(cuda::device_properties(d).gpu);
  return gpus.size() == devices.size();
}

// The ranks wait for one another, so each is made on a thread. These are no device workers, because a worker
// may be the caller.
std::vector<std::shared_ptr<Backend>> nccl_backends(const std::vector<Device>& devices,
                                                    const std::shared_ptr<Store>& store) {
  constexpr Milliseconds kRendezvousTimeout(300'000);
  std::vector<std::shared_ptr<Backend>> backends(devices.size());
  std::vector<std::exception_ptr> errors(devices.size());
  struct Threads : std::vector<std::thread> {
    ~Threads() { join(); }
    void join() {
      for (std::thread& t : *this) t.join();
      clear();
    }
  } threads;
  for (std::size_t r = 0; r < devices.size(); ++r)
    threads.push_back(detail::start_thread("make_replica_groups", [&, r] {
      try {
        backends[r] = nccl_backend(prefix_store("nccl/", store), static_cast<int>(r),
                                   static_cast<int>(devices.size()), devices[r], kRendezvousTimeout);
      } catch (...) {
        errors[r] = std::current_exception();
      }
    }));
  threads.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
  return backends;
}

}  // namespace

void check_replica_devices(const char* op, const std::vector<Device>& devices) {
  check(!devices.empty(), "[", op, "] there are no devices; name one or more");
  for (const Device d : devices) {
    check_device(op, d);
    check(std::count(devices.begin(), devices.end(), d) == 1, "[", op, "] ", d,
          " is named twice; name each device once");
    check<DeviceError>(d.type == devices[0].type, "[", op, "] ", devices[0], " and ", d,
                       " have different types; use devices of one type");
  }
}

ReplicaGroups make_replica_groups(const std::vector<Device>& devices, const std::string& backend,
                                  const GroupOptions& options, const std::string& name) {
  const std::shared_ptr<Store> store = memory_store();
  const bool nccl = backend.empty() ? built_with_nccl() && have_a_gpu_each(devices) : backend == "nccl";
  ReplicaGroups groups;
  for (std::shared_ptr<Backend>& own :
       nccl ? nccl_backends(devices, store) : local_backends(static_cast<int>(devices.size())))
    groups.push_back(make_process_group(std::move(own), store, options, name));
  return groups;
}

}  // namespace tapestry::distributed
