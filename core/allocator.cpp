#include "tapestry/core/allocator.h"

#include <atomic>

#include "tapestry/core/cuda/internal/devices.h"
#include "tapestry/core/error.h"
#include "tapestry/core/internal/cpu_allocator.h"

namespace tapestry {
namespace {

// The meta device's memory, of which there is none.
class NoMemory : public Allocator {
 public:
  void* allocate(Device, std::size_t) override { return nullptr; }
  void deallocate(Device, void*, std::size_t) noexcept override {}
  MemoryStats stats(Device) const override { return {}; }
  void reset_peak(Device) override {}
  void empty_cache() override {}
  void copy(Device, void*, const void*, std::size_t) override {
    fail<DeviceError>("[copy] tensors on the meta device have no elements to copy; use a real device");
  }
};
Allocator& no_memory() {
  static NoMemory& none = *new NoMemory;  // never destroyed: tensors may be static
  return none;
}

constinit std::atomic<Allocator*> installed[kNumDeviceTypes] = {};

}  // namespace

Allocator& allocator(DeviceType type) {
  if (Allocator* const a = installed[static_cast<int>(type)].load(std::memory_order_acquire)) [[likely]]
    return *a;
  if (type == DeviceType::meta) return no_memory();
  check<DeviceError>(type == DeviceType::cpu || device_count(type) > 0, "[allocator] no memory of type ",
                     device_type_name(type), ": there are no CUDA devices (", cuda::why_no_device(),
                     "); use cpu");
  Allocator& own = type == DeviceType::cpu ? detail::cpu_allocator() : cuda::cuda_allocator();
  Allocator* none = nullptr;
  installed[static_cast<int>(type)].compare_exchange_strong(none, &own);
  return none ? *none : own;
}

void set_allocator(DeviceType type, Allocator* a) {
  installed[static_cast<int>(type)].store(a, std::memory_order_release);
}

MemoryStats memory_stats(Device device) {
  check_device("memory_stats", device);
  return allocator(device.type).stats(device);
}

void reset_peak_memory(Device device) {
  check_device("reset_peak_memory", device);
  allocator(device.type).reset_peak(device);
}

void empty_cache(DeviceType type) { allocator(type).empty_cache(); }

}  // namespace tapestry
