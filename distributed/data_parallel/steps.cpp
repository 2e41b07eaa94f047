#include "tapestry/distributed/data_parallel/steps.h"

#include <algorithm>

#include "tapestry/autograd/engine.h"
#include "tapestry/core/error.h"
#include "tapestry/core/internal/worker.h"
#include "tapestry/core/timeline.h"
#include "tapestry/distributed/data_parallel/internal/replicas.h"

namespace tapestry::distributed {
namespace {

void check_devices(const char* op, std::span<const Device> devices) {
  check(!devices.empty(), "[", op, "] there are no devices; name one or more");
  for (std::size_t i = 0; i < devices.size(); ++i) {
    check_device(op, devices[i]);
    check(std::find(devices.begin(), devices.begin() + static_cast<std::ptrdiff_t>(i), devices[i]) ==
              devices.begin() + static_cast<std::ptrdiff_t>(i),
          "[", op, "] ", devices[i], " is named twice; name each device once");
  }
}

// A new leaf with the same values on another device.
Tensor replica_of(const Tensor& first, Device device) {
  Tensor copy = first.detach().to(device);
  if (first.requires_grad()) copy.set_requires_grad();
  return copy;
}

template <class F>
void for_slots(nn::Module& model, const F& fn) {
  for (nn::Parameter& p : model.parameters()) fn(p);
  for (nn::Buffer& b : model.buffers()) fn(b);
}

}  // namespace

std::vector<std::vector<Tensor>> scatter_tensors(const TensorList& batch, std::span<const Device> devices) {
  check_devices("scatter", devices);
  auto chunks = split_tensors(batch, chunk_sizes(samples_in("scatter", batch), devices.size()));
  for (std::size_t r = 0; r < chunks.size(); ++r)
    for (Tensor& t : chunks[r])
      if (t.defined()) t = t.to(devices[r]);
  return chunks;
}

namespace {

// True if the slots have one tensor per device.
bool are_replicated(const std::vector<nn::TensorSlot>& slots, std::span<const Device> devices) {
  return std::all_of(slots.begin(), slots.end(), [&](const nn::TensorSlot& slot) {
    if (slot.replicas() != static_cast<int>(devices.size())) return false;
    for (int r = 0; r < slot.replicas(); ++r)
      if (!(slot.replica(r).device() == devices[static_cast<std::size_t>(r)])) return false;
    return true;
  });
}

// The first tensors of the slots are on the first device.
void copy_first(const std::vector<nn::TensorSlot>& slots, std::span<const Device> devices,
                bool is_replicated) {
  std::vector<std::vector<Tensor>> copies(slots.size(), std::vector<Tensor>(devices.size()));
  on_replicas(devices, [&](int r) {
    const NoGradGuard no_grad;
    SpanScope span(devices[static_cast<std::size_t>(r)], Activity::communication, "replicate");
    std::int64_t bytes = 0;
    for (const nn::TensorSlot& slot : slots)
      if (r > 0) bytes += static_cast<std::int64_t>(slot.replica(0).nbytes());
    span.set_subject({.bytes = bytes});
    for (std::size_t s = 0; s < slots.size(); ++s) {
      const Tensor first = slots[s].replica(0);
      Tensor& copy = copies[s][static_cast<std::size_t>(r)];
      if (r == 0) copy = first;
      else if (!is_replicated) copy = replica_of(first, devices[static_cast<std::size_t>(r)]);
      else slots[s].replica(r).detach().copy_(first.detach());
    }
  });
  if (is_replicated) return;
  for (std::size_t s = 0; s < slots.size(); ++s) {
    nn::TensorSlot slot = slots[s];
    slot.set_replicas(std::move(copies[s]));
  }
}

}  // namespace

void replicate_slots(const std::vector<nn::TensorSlot>& slots, std::span<const Device> devices) {
  const EnableGradGuard no_inference;
  const bool is_replicated = are_replicated(slots, devices);
  for (nn::TensorSlot slot : slots)
    if (!is_replicated) slot.set_replicas({replica_of(slot.replica(0), devices[0])});
  copy_first(slots, devices, is_replicated);
}

void replicate(nn::Module& model, std::span<const Device> devices) {
  check_devices("replicate", devices);
  const EnableGradGuard no_inference;  // inference tensors could not be trained later
  for (const auto& [name, slot] : model.named_parameters()) {
    check(!slot.layout(), "[replicate] '", name,
          "' is sharded, and a replica would need all of it; use the sharded model itself");
    check(slot.replicas() != 1 || !has_reducer(slot.replica(0)), "[replicate] '", name,
          "' belongs to a DistributedDataParallel, which would average the first replica's gradient only; use "
          "one rank per device");
  }
  std::vector<nn::TensorSlot> slots;
  for_slots(model, [&](const nn::TensorSlot& slot) { slots.push_back(slot); });
  const bool is_replicated = are_replicated(slots, devices);
  if (!is_replicated) {
    unreplicate(model);
    model.to(devices[0]);
  }
  copy_first(slots, devices, is_replicated);
}

void check_replicas(const nn::Module& model) {
  for (const auto& [name, slot] : model.named_parameters()) {
    if (slot.layout()) continue;
    std::vector<Tensor> replicas;
    std::vector<Device> devices;
    for (int r = 0; r < slot.replicas(); ++r) {
      replicas.push_back(slot.replica(r));
      devices.push_back(replicas.back().device());
    }
    if (replicas.size() > 1) check_equal("check_replicas", name, devices, replicas);
  }
}

void unreplicate(nn::Module& model) {
  for (const auto& [name, slot] : model.named_parameters())
    check(!slot.layout() || slot.replicas() == 1, "[unreplicate] '", name,
          "' is sharded over devices, which have parts of it; call ShardedDataParallel::whole_state_dict(), and "
          "load it into another model");
  for_slots(model, [](nn::TensorSlot slot) {
    if (slot.replicas() > 1) slot.set_replicas({slot.replica(0)});
  });
}

void check_no_replica(std::span<const Device> devices) {
  for (const Device d : devices)
    check(!device_worker(d).is_current(), "[on_replicas] called on the worker thread of ", d,
          ", which runs a replica; replicas cannot be nested");
}

void on_replicas(std::span<const Device> devices, const std::function<void(int)>& task) {
  check_no_replica(devices);
  const bool anomaly = autograd::DetectAnomaly::active();
  on_workers(devices, [&](int r) {
    Context context = current_context();
    context.replica = static_cast<std::int16_t>(r);
    context.device = devices[static_cast<std::size_t>(r)];
    const ContextGuard guard(context);
    std::optional<autograd::DetectAnomaly> detect;
    if (anomaly) detect.emplace();
    task(r);
  });
}

}  // namespace tapestry::distributed
