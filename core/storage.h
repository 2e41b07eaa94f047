#pragma once
// A block of device memory with a reference count and a version.
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "tapestry/core/device.h"
#include "tapestry/core/intrusive.h"

namespace tapestry {

class Storage;
using StorageRef = Ref<Storage>;

/// Views of one tensor share one Storage. `version` counts in-place changes, so that the tape can tell when a
/// saved tensor was overwritten.
class Storage {
 public:
  /// Uninitialised memory. Throws OutOfMemoryError; DeviceError when the device does not exist.
  static StorageRef allocate(Device device, std::size_t bytes);
  /// Memory that somebody else owns; `release(arg)` runs when the last reference goes (may be null).
  static StorageRef wrap(Device device, void* data, std::size_t bytes, void (*release)(void*) = nullptr,
                         void* arg = nullptr);
  /// Part of `base` under a version of its own: gradients as views into a bucket are not "in-place changes"
  /// of one another. Throws IndexError unless the part lies inside.
  static StorageRef part(const StorageRef& base, std::size_t offset, std::size_t bytes);

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  Device device() const { return device_; }
  std::uint32_t version() const { return version_.load(std::memory_order_relaxed); }
  void bump_version() { version_.fetch_add(1, std::memory_order_relaxed); }
  /// The version after the last in-place change that the tape recorded: views made before it have a stale
  /// history.
  std::uint32_t recorded_change() const { return recorded_change_.load(std::memory_order_relaxed); }
  void mark_recorded_change() { recorded_change_.store(version(), std::memory_order_relaxed); }
  int use_count() const { return refs_.load(std::memory_order_acquire); }

  void retain() const { refs_.fetch_add(1, std::memory_order_relaxed); }
  void release() const {
    // Who holds the only reference need not count down: nobody else can take one.
    if (refs_.load(std::memory_order_acquire) == 1 || refs_.fetch_sub(1, std::memory_order_acq_rel) == 1)
      destroy();
  }

 private:
  // Who owns the data: somebody else; the allocator that gave it; the same, in one block with this record.
  enum class Owner : std::uint8_t { other, apart, block };

  Storage(Device device, void* data, std::size_t bytes, Owner owner, void (*release)(void*), void* arg)
      : device_(device), owner_(owner), data_(data), bytes_(bytes), release_(release), arg_(arg) {}
  ~Storage() = default;
  void destroy() const noexcept;

  mutable std::atomic<int> refs_{1};
  std::atomic<std::uint32_t> version_{0};
  std::atomic<std::uint32_t> recorded_change_{0};
  Device device_;
  Owner owner_;
  void* data_;
  std::size_t bytes_;
  void (*release_)(void*);
  void* arg_;  // of release_, or the Allocator
};

}  // namespace tapestry
