#pragma once
// Device memory: allocators, and statistics per logical device.
#include <cstddef>
#include <cstdint>

#include "tapestry/core/device.h"

namespace tapestry {

/// Memory statistics of one logical device.
struct MemoryStats {
  std::int64_t allocated = 0;       ///< bytes in live tensors now
  std::int64_t peak_allocated = 0;  ///< maximum of `allocated` since reset_peak_memory
  std::int64_t reserved = 0;        ///< bytes taken from the system, both in live tensors and cached
  std::int64_t allocations = 0;     ///< number of allocations so far
};

/// Throws DeviceError if the device does not exist.
MemoryStats memory_stats(Device device);
/// Sets `peak_allocated` to `allocated`.
void reset_peak_memory(Device device);
/// Returns cached blocks that no tensor uses to the system, for all devices of this type.
void empty_cache(DeviceType type = DeviceType::cpu);

/// The interface that each device type implements. Pointers are aligned to 64 bytes. For zero bytes,
/// `allocate` returns a valid pointer; it may return null only if header_room() is 0. Any thread may call
/// `deallocate`, even after main has returned. Callers pass it the same device and bytes as to `allocate`.
class Allocator {
 public:
  virtual ~Allocator() = default;
  /// Throws OutOfMemoryError, which gives the requested, the allocated and the reserved bytes.
  virtual void* allocate(Device device, std::size_t bytes) = 0;
  virtual void deallocate(Device device, void* data, std::size_t bytes) noexcept = 0;
  virtual MemoryStats stats(Device device) const = 0;
  virtual void reset_peak(Device device) = 0;
  virtual void empty_cache() = 0;
  /// Copies bytes within this device, or between it and host memory, and waits until the copy is done.
  virtual void copy(Device device, void* to, const void* from, std::size_t bytes) = 0;
  /// The number of bytes of host memory before each block that Storage may use for its own object. A small
  /// tensor then needs one allocation instead of two. 0 if the allocator has no such room.
  std::size_t header_room() const { return header_room_; }

 protected:
  explicit Allocator(std::size_t header_room = 0) : header_room_(header_room) {}

 private:
  const std::size_t header_room_;
};

/// The allocator of this device type. Throws DeviceError if there is no device of this type.
Allocator& allocator(DeviceType type);
/// Installs `a` as the allocator of this device type. `a` must never be destroyed. Each block is returned to
/// the allocator that it came from.
void set_allocator(DeviceType type, Allocator* a);

}  // namespace tapestry
