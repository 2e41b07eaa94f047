#include "tapestry/nn/materialize.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "tapestry/core/error.h"

namespace tapestry::nn {
namespace {

constexpr const char* kOp = "materialize";

NamedSlots slots_of(const Module& module) {
  NamedSlots slots;
  for (const auto& [name, slot] : module.named_parameters()) slots.emplace_back(name, slot);
  for (const auto& [name, slot] : module.named_buffers()) slots.emplace_back(name, slot);
  return slots;
}

bool is_meta(const TensorSlot& slot) {
  if (!slot.defined() || slot.is_computed()) return false;
  for (int r = 0; r < slot.replicas(); ++r)
    if (slot.replica(r).device().is_meta()) return true;
  return false;
}

}  // namespace

void materialize(const NamedSlots& named, Device device) {
  check_device(kOp, device);
  check<DeviceError>(!device.is_meta(), "[", kOp,
                     "] the meta device has no memory; pass the device that is to have the parameters");
  std::string wrong;
  for (const auto& [name, slot] : named) {
    if (!is_meta(slot)) continue;
    check(slot.replicas() == 1, "[", kOp, "] '", name, "' has ", slot.replicas(),
          " replicas; give the module memory before it is replicated");
    if (const std::string why = autograd::why_not_materialized(slot.replica(0)); !why.empty())
      wrong += "\n  '" + name + "' " + why;
  }
  check(wrong.empty(), "[", kOp,
        "] these tensors have no values that can be computed again, and nothing was ", "changed:", wrong,
        "\nset them with nn::init functions or those that autograd/deferred.h lists, build them on a real "
        "device, or call to_empty() and fill them by hand");
  // Tensors that share a storage keep sharing it.
  std::unordered_map<const Storage*, std::pair<Tensor, StorageRef>> made;
  for (const auto& [name, slot] : named) {
    if (!is_meta(slot)) continue;
    const Tensor old = slot.replica(0);
    auto& [keep, memory] = made[old.storage().get()];
    if (!memory) {
      keep = old;
      memory = tapestry::materialize(old.detach(), device).storage();
    }
    const Tensor real =
        tapestry::detail::make_tensor(memory, old.dtype(), old.sizes(), old.strides(), old.storage_offset());
    if (is_floating(old.dtype())) real.set_requires_grad(old.requires_grad());
    TensorSlot(slot).set_replica(0, real);
  }
}

void materialize(Module& module, Device device) { materialize(slots_of(module), device); }

bool has_meta_tensors(const Module& module) {
  const NamedSlots slots = slots_of(module);
  return std::any_of(slots.begin(), slots.end(), [](const auto& entry) { return is_meta(entry.second); });
}

}  // namespace tapestry::nn
