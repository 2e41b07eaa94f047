#pragma once
// Workspace of kernels.
#include <cstdint>

#include "tapestry/core/storage.h"

namespace tapestry::kernels {

/// Uninitialised memory of a device, for as long as a kernel runs: on a GPU until what its stream has been
/// given by then is done, so it may go once the last launch that uses it was made. Of no elements: null.
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
