#pragma once
// Tensors of any strides and device in the memory that a transport takes.
#include <optional>

#include "tapestry/core/tensor.h"
#include "tapestry/distributed/comm/internal/strided.h"
#include "tapestry/distributed/comm/store.h"

namespace tapestry::distributed {

/// A tensor's elements in row-major order, on the device `where` (any CPU, or a CUDA device): its own memory
/// where it is so already, else a copy. Tensors of a CUDA device go through pinned memory to a transport that
/// takes host memory. What a GPU does for it happens on the device's current stream; the host waits, until
/// the deadline, where it has to touch the elements. Throws TimeoutError.
class Staged {
 public:
  using Fill = Dense::Fill;
  Staged(const Tensor& t, Fill fill, Device where, Deadline deadline);

  void* data() const { return host_ ? host_->data() : buffer_.raw_data(); }
  /// Makes the tensor hold what is in data().
  void store() const;

 private:
  const Tensor t_;
  const Deadline deadline_;
  std::optional<Dense> host_;  // both are on CPUs
  Tensor buffer_;              // else: on `where`; t_ itself where it needs no copy
};

}  // namespace tapestry::distributed
