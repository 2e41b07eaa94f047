#include "tapestry/nn/internal/replica_devices.h"

#include <algorithm>
#include <exception>
#include <thread>

#include "tapestry/core/context.h"
#include "tapestry/core/internal/limits.h"
#include "tapestry/core/internal/worker.h"

namespace tapestry::nn {

namespace {
// True if the list has several replicas or several CPU devices.
bool need_workers(std::span<const ReplicaDevice> replica_devices) {
  const ReplicaDevice* cpu = nullptr;
  for (const ReplicaDevice& d : replica_devices) {
    if (d.replica != replica_devices[0].replica) return true;
    if (!d.device.is_cpu()) continue;
    if (cpu && !(cpu->device == d.device)) return true;
    cpu = &d;
  }
  return false;
}

bool share_a_device(std::span<const ReplicaDevice> replicas) {
  for (std::size_t i = 0; i < replicas.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (replicas[i].device == replicas[j].device) return true;
  return false;
}
}  // namespace

void add_replica_devices(std::span<const Parameter> params, std::vector<ReplicaDevice>& replica_devices) {
  for (const Parameter& p : params)
    for (int r = 0; r < p.replicas(); ++r) {
      const Tensor& stored = stored_tensor(p, r);
      if (!stored.grad().defined()) continue;
      const ReplicaDevice replica_device{r, stored.device()};
      if (std::find(replica_devices.begin(), replica_devices.end(), replica_device) == replica_devices.end())
        replica_devices.push_back(replica_device);
    }
}

void for_each_replica_device(std::span<const ReplicaDevice> replica_devices,
                             const std::function<void(const ReplicaDevice&)>& task) {
  if (!need_workers(replica_devices)) {
    for (const ReplicaDevice& d : replica_devices) task(d);
    return;
  }
  std::vector<Device> devices;
  for (const ReplicaDevice& d : replica_devices) devices.push_back(d.device);
  on_workers(devices, [&](int i) { task(replica_devices[static_cast<std::size_t>(i)]); });
}

void for_each_rank(std::span<const ReplicaDevice> replicas,
                   const std::function<void(const ReplicaDevice&)>& task) {
  if (!share_a_device(replicas)) return for_each_replica_device(replicas, task);
  const Context context = current_context();
  std::vector<std::exception_ptr> errors(replicas.size());
  {
    std::vector<std::thread> threads;
    struct Join {
      std::vector<std::thread>& threads;
      ~Join() {
        for (std::thread& t : threads) t.join();
      }
    };
    const Join join{threads};
    threads.reserve(replicas.size());
    for (std::size_t i = 0; i < replicas.size(); ++i)
      threads.push_back(tapestry::detail::start_thread("compute", [&, i] {
        try {
          const ContextGuard guard(context);
          task(replicas[i]);
        } catch (...) {
          errors[i] = std::current_exception();
        }
      }));
  }
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

void zero_gradients(std::span<const Parameter> params, bool set_to_none) {
  if (set_to_none) {
    for (const Parameter& p : params)
      for (int r = 0; r < p.replicas(); ++r) stored_tensor(p, r).zero_grad();
    return;
  }
  std::vector<ReplicaDevice> replica_devices;
  add_replica_devices(params, replica_devices);
  for_each_replica_device(replica_devices, [&](const ReplicaDevice& replica_device) {
    for (const Parameter& p : params)
      if (replica_device.has(p)) stored_tensor(p, replica_device.replica).zero_grad(false);
  });
}

}  // namespace tapestry::nn
