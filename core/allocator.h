#pragma once
// Memory of devices, with bytes counted by logical device.
#include <cstddef>
#include <cstdint>

#include "tapestry/core/device.h"

namespace tapestry {

/// What one logical device's allocator holds.
struct MemoryStats {
  std::int64_t allocated = 0;       ///< bytes in live tensors now
  std::int64_t peak_allocated = 0;  ///< the most that `allocated` has been since reset_peak_memory
  std::int64_t reserved = 0;        ///< bytes taken from the system: live and cached
  std::int64_t allocations = 0;     ///< number of allocations so far
};

MemoryStats memory_stats(Device device);
/// Starts `peak_allocated` again from `allocated`.
void reset_peak_memory(Device device);
/// Gives cached blocks that no tensor uses back to the system.
void empty_cache(DeviceType type = DeviceType::cpu);

/// The interface that each kind of device implements. Pointers are aligned to 64 bytes. `allocate` of zero
/// bytes returns a valid pointer or null (not null where there is header room); `deallocate` may come from
/// any thread, after main has returned too, and gets the same device and bytes.
class Allocator {
 public:
  virtual ~Allocator() = default;
  /// Throws OutOfMemoryError that says what was asked for, what is allocated and what is reserved.
  virtual void* allocate(Device device, std::size_t bytes) = 0;
  virtual void deallocate(Device device, void* data, std::size_t bytes) noexcept = 0;
  virtual MemoryStats stats(Device device) const = 0;
  virtual void reset_peak(Device device) = 0;
  virtual void empty_cache() = 0;
  /// Copies bytes between two places of this device, or between it and host memory, and waits until that is
  /// done.
  virtual void copy(Device device, void* to, const void* from, std::size_t bytes) = 0;
  /// Bytes of host memory before each block of `device` that Storage may keep its own record in, so that a
  /// small tensor costs one allocation. 0: none.
  std::size_t header_room() const { return header_room_; }

 protected:
  explicit Allocator(std::size_t header_room = 0) : header_room_(header_room) {}

 private:
  const std::size_t header_room_;
};

/// The allocator of this device type. Throws DeviceError when there is none (CUDA in a build without it).
Allocator& allocator(DeviceType type);
/// Installs `a`, which lives for ever. Memory goes back to the allocator that it came from.
void set_allocator(DeviceType type, Allocator* a);

}  // namespace tapestry
