#include "tapestry/core/storage.h"

#include <new>
#include <utility>

#include "tapestry/core/allocator.h"
#include "tapestry/core/error.h"

namespace tapestry {

StorageRef Storage::allocate(Device device, std::size_t bytes) {
  if (device != kCPU) check_device("Storage::allocate", device);  // cpu:0 always exists
  Allocator& from = allocator(device.type);
  void* const data = from.allocate(device, bytes);
  if (from.header_room() >= sizeof(Storage)) {
    void* const place = static_cast<char*>(data) - sizeof(Storage);
    static_assert(64 % alignof(Storage) == 0 && sizeof(Storage) % alignof(Storage) == 0);
    return StorageRef::adopt(new (place) Storage(device, data, bytes, Owner::block, nullptr, &from));
  }
  try {
    return StorageRef::adopt(new Storage(device, data, bytes, Owner::apart, nullptr, &from));
  } catch (...) {
    from.deallocate(device, data, bytes);
    throw;
  }
}

StorageRef Storage::wrap(Device device, void* data, std::size_t bytes, void (*release)(void*), void* arg) {
  check_device("Storage::wrap", device);
  return StorageRef::adopt(new Storage(device, data, bytes, Owner::other, release, arg));
}

StorageRef Storage::part(const StorageRef& base, std::size_t offset, std::size_t bytes) {
  check<IndexError>(offset <= base->bytes() && bytes <= base->bytes() - offset, "[Storage::part] ", bytes,
                    " bytes at offset ", offset, " exceed a storage of ", base->bytes(),
                    " bytes; pass a part of it");
  const auto release = [](void* whole) { static_cast<Storage*>(whole)->release(); };
  StorageRef part =
      wrap(base->device(), static_cast<char*>(base->data()) + offset, bytes, release, base.get());
  base->retain();
  return part;
}

StorageRef Storage::releasable(Device device, std::size_t bytes, StorageSource* source) {
  check_device("Storage::releasable", device);
  const StorageRef storage = StorageRef::adopt(
      new Storage(device, nullptr, bytes, Owner::releasable, nullptr, &allocator(device.type)));
  storage->source_ = source;
  return storage;
}

void Storage::acquire() {
  check(owner_ == Owner::releasable, "[Storage::acquire] the storage is not releasable; create it with ",
        "Storage::releasable()");
  if (!data_) data_ = static_cast<Allocator*>(arg_)->allocate(device_, bytes_);
}

void Storage::release_memory() {
  check(owner_ == Owner::releasable, "[Storage::release_memory] the storage is not releasable; create it ",
        "with Storage::releasable()");
  if (void* const data = std::exchange(data_, nullptr))
    static_cast<Allocator*>(arg_)->deallocate(device_, data, bytes_);
}

void Storage::destroy() const noexcept {
  if (owner_ == Owner::other) {
    if (release_) release_(arg_);
    delete this;
    return;
  }
  Allocator& from = *static_cast<Allocator*>(arg_);
  const Device device = device_;
  void* const data = data_;
  const std::size_t bytes = bytes_;
  if (owner_ == Owner::block) this->~Storage();
  else delete this;
  if (!data) return;  // the memory was released
  from.deallocate(device, data, bytes);
}

}  // namespace tapestry
