#include "tapestry/kernels/slot.h"

#include "tapestry/core/error.h"
#include "tapestry/core/stream.h"

namespace tapestry::kernels {
namespace {
// The head of the linked list of slots. It needs no lock, because slots are never destroyed, and one thread
// registers all of them while it loads the library.
constinit SlotBase* slots = nullptr;
using LaunchHook = void (*)(Device, void*);
constinit LaunchHook launch_hook = nullptr;
}  // namespace

const SlotBase* SlotBase::first() { return slots; }

DTypeSet SlotBase::dtypes(DeviceType device) const {
  DTypeSet set = 0;
  for (int i = 0; i < kNumDTypes; ++i)
    if (table_[int(device)][i]) set = static_cast<DTypeSet>(set | bit(static_cast<DType>(i)));
  return set;
}

void SlotBase::put(DeviceType device, DType dtype, AnyFn fn) {
  table_[int(device)][int(dtype)] = fn;
  if (linked_) return;
  linked_ = true;
  next_ = slots;
  slots = this;
}

LaunchContext SlotBase::gpu_context(Device device) {
  const Stream stream = current_stream(device);
  if (launch_hook) launch_hook(device, stream.native());
  return {device, stream.native()};
}

void set_launch_hook(void (*use_device)(Device, void*)) { launch_hook = use_device; }

void SlotBase::missing(DeviceType device, DType dtype) const {
  if (device == DeviceType::meta) return;
  std::string has;
  for (int i = 0; i < kNumDTypes; ++i)
    if (table_[int(device)][i]) has += (has.empty() ? "" : ", ") + std::string(dtype_name(DType(i)));
  fail<MissingKernelError>("[", name_, "] there is no ", device_type_name(device), " kernel for ", dtype,
                           has.empty()
                               ? "; this device type has none at all for it, move the tensors with .to()"
                               : "; convert with .to() to one of: ",
                           has);
}

}  // namespace tapestry::kernels
