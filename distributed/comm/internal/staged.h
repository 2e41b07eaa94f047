#pragma once
// Copies tensors of any strides and device to memory that a transport accepts.
#include <optional>

#include "tapestry/core/tensor.h"
#include "tapestry/distributed/comm/internal/strided.h"
#include "tapestry/distributed/comm/store.h"

namespace tapestry::distributed {

/// The elements of a tensor in row-major order, on the device `where`. Uses the tensor's own memory if
/// possible, otherwise a copy. If `where` is a CPU, the copy of a CUDA tensor is in pinned memory. Copies run
/// on the current stream of the CUDA device. The host waits for them only if it must access the elements,
/// until the deadline. Throws TimeoutError.
class Staged {
 public:
  using Fill = Dense::Fill;
  Staged(const Tensor& t, Fill fill, Device where, Deadline deadline);

  void* data() const { return host_ ? host_->data() : buffer_.raw_data(); }
  /// Copies data() back to the tensor.
  void store() const;

 private:
  const Tensor t_;
  const Deadline deadline_;
  std::optional<Dense> host_;  // holds the elements if the tensor and `where` are both on CPUs
  Tensor buffer_;              // otherwise holds the elements on `where`; t_ itself if no copy is needed
};

}  // namespace tapestry::distributed
