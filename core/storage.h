#pragma once
// Storage: a block of device memory with a reference count and a version counter.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "tapestry/core/device.h"
#include "tapestry/core/intrusive.h"

namespace tapestry {

class Storage;
using StorageRef = Ref<Storage>;

/// Fills the memory of a releasable Storage again.
class StorageSource {
 public:
  /// Called each time backward reads a saved tensor of a storage with this source, also while the storage has
  /// memory, because a transfer may still be filling it. Returns when the elements that were saved are there,
  /// or throws. If the memory is released, it must call Storage::acquire() first.
  virtual void refill(Storage& storage) = 0;
  /// Says in an error message why a tensor of the storage cannot be read, and what to do about it.
  virtual std::string why_released(const Storage& storage) const = 0;

 protected:
  ~StorageSource() = default;
};

/// What a Storage on the meta device remembers about the elements that it stands for. Autograd derives from
/// this class (autograd/deferred.h).
struct DeferredElements {
  virtual ~DeferredElements() = default;
};

/// A tensor and its views share one Storage. version() counts in-place changes, so that the tape can detect
/// that a saved tensor was overwritten.
class Storage {
 public:
  /// Allocates uninitialised memory, on the meta device none. Throws OutOfMemoryError, or DeviceError if the
  /// device does not exist.
  static StorageRef allocate(Device device, std::size_t bytes);
  /// Wraps memory that the caller owns. Calls release(arg) when the last reference is dropped, unless
  /// `release` is null. Throws DeviceError if the device does not exist, or is meta.
  static StorageRef wrap(Device device, void* data, std::size_t bytes, void (*release)(void*) = nullptr,
                         void* arg = nullptr);
  /// A part of `base` with its own version counter. It holds a reference to `base`. DDP uses it for gradients
  /// in a bucket: a change of one gradient must not count as an in-place change of the others. Throws
  /// IndexError unless the part lies inside `base`.
  static StorageRef part(const StorageRef& base, std::size_t offset, std::size_t bytes);

  // ---- memory that can be released ----
  /// A Storage without memory, until acquire(). Its memory may be released and acquired again any number of
  /// times: tensors that share it stay valid, and version() does not change. Reading a tensor of a released
  /// storage throws, except in backward, which calls source->refill() first. `source` must exist until
  /// set_source(nullptr). No other thread may use the storage during acquire() and release_memory().
  static StorageRef releasable(Device device, std::size_t bytes, StorageSource* source);
  /// Allocates the memory if it is released. The elements are uninitialised. Throws OutOfMemoryError, and
  /// ValueError if the storage is not releasable.
  void acquire();
  /// Frees the memory. Throws ValueError if the storage is not releasable.
  void release_memory();
  bool is_released() const { return owner_ == Owner::releasable && !data_ && !device_.is_meta(); }
  StorageSource* source() const { return source_; }
  void set_source(StorageSource* source) { source_ = source; }

  // ---- on the meta device ----
  /// Null if nothing is remembered. No other thread may use the storage during set_deferred().
  DeferredElements* deferred() const {
    return owner_ == Owner::meta ? static_cast<DeferredElements*>(arg_) : nullptr;
  }
  /// Throws DeviceError unless the storage was allocated on the meta device.
  void set_deferred(std::unique_ptr<DeferredElements> deferred);

  /// Null if the memory is released, and on the meta device.
  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  Device device() const { return device_; }
  std::uint32_t version() const { return version_.load(std::memory_order_relaxed); }
  void bump_version() { version_.fetch_add(1, std::memory_order_relaxed); }
  /// The version right after the last in-place change that the tape recorded. Views made before that change
  /// have a stale history.
  std::uint32_t recorded_change() const { return recorded_change_.load(std::memory_order_relaxed); }
  void mark_recorded_change() { recorded_change_.store(version(), std::memory_order_relaxed); }
  int use_count() const { return refs_.load(std::memory_order_acquire); }

  void retain() const { refs_.fetch_add(1, std::memory_order_relaxed); }
  void release() const {
    // A sole owner skips the atomic decrement, because no other thread can take a reference.
    if (refs_.load(std::memory_order_acquire) == 1 || refs_.fetch_sub(1, std::memory_order_acq_rel) == 1)
      destroy();
  }

 private:
  // Says who owns the data. `other`: the caller of wrap(). `apart`: the allocator that arg_ points to.
  // `block`: also the allocator, and this Storage object lies in the header room in front of the data.
  // `releasable`: also the allocator, unless the memory is released. `meta`: there is no data, and arg_ is
  // the DeferredElements.
  enum class Owner : std::uint8_t { other, apart, block, releasable, meta };

  Storage(Device device, void* data, std::size_t bytes, Owner owner, void (*free_data)(void*), void* arg)
      : device_(device), owner_(owner), data_(data), bytes_(bytes), release_(free_data), arg_(arg) {}
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
  void* arg_;  // the argument of release_, the Allocator, or the DeferredElements
  StorageSource* source_ = nullptr;
};

}  // namespace tapestry
