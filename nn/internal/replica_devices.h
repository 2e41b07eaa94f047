#pragma once
// Runs work on gradients on the devices that hold them. Optimizers, clipping and zero_grad use it, because
// they change many parameters at once.
#include <functional>
#include <span>
#include <vector>

#include "tapestry/core/internal/part_memory.h"
#include "tapestry/nn/internal/stored.h"
#include "tapestry/nn/parameter.h"

namespace tapestry::nn {

/// A ReplicaDevice is the part of one replica on one device: the parameters whose tensor of this replica,
/// or shard, is on this device.
struct ReplicaDevice {
  int replica = 0;
  Device device;

  /// True if the parameter belongs to this part.
  bool has(const Parameter& p) const {
    return replica < p.replicas() && stored_tensor(p, replica).device() == device;
  }
  friend bool operator==(const ReplicaDevice&, const ReplicaDevice&) = default;
};

/// Appends the replica devices on which these parameters have gradients. Devices that the list has already
/// are skipped.
void add_replica_devices(std::span<const Parameter> params, std::vector<ReplicaDevice>& replica_devices);

/// Runs task(replica_device) for each entry of the list. If the list has several replicas or several CPU
/// devices, the tasks run at the same time: each on its device's worker, in the caller's context. After all
/// of them have ended, the function rethrows the first exception, with the device appended to its text.
/// Otherwise the tasks run one after another on the calling thread: launches are asynchronous, so several
/// GPUs still compute at the same time.
void for_each_replica_device(std::span<const ReplicaDevice> replica_devices,
                             const std::function<void(const ReplicaDevice&)>& task);

/// Like for_each_replica_device(), for tasks that wait for one another in a collective. Replicas on one
/// device, which are shards in host memory of several GPUs, get a thread each: its worker would run them in
/// turn.
void for_each_rank(std::span<const ReplicaDevice> replicas,
                   const std::function<void(const ReplicaDevice&)>& task);

/// True if the parameter belongs to a stage of a Pipeline over ranks. Then this rank has no other stage's
/// parameters.
inline bool is_of_one_stage(const Parameter& p) {
  using tapestry::detail::PartMemory;
  return p.replicas() > 0 && PartMemory::find(stored_tensor(p, 0), PartMemory::Of::pipeline);
}

/// Calls Tensor::zero_grad for every parameter, in all replicas.
void zero_gradients(std::span<const Parameter> params, bool set_to_none);

}  // namespace tapestry::nn
