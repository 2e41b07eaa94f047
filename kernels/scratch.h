#pragma once
// The workspace of a kernel.
#include <cstdint>

#include "tapestry/core/storage.h"

namespace tapestry::kernels {

/// Uninitialised device memory. It is freed in stream order, so the host may destroy this object as soon as
/// it has launched the last kernel that uses the memory. With 0 elements, data() is null.
template <class T>
class Scratch {
 public:
  Scratch() = default;
  Scratch(Device device, std::int64_t elements) {
    if (elements > 0) storage_ = Storage::allocate(device, static_cast<std::size_t>(elements) * sizeof(T));
  }
  T* data() const { return storage_ ? static_cast<T*>(storage_->data()) : nullptr; }

 private:
  StorageRef storage_;
};

}  // namespace tapestry::kernels
