#pragma once
// Tensors of any strides as the dense memory that transports move.
#include <cstddef>
#include <memory>

#include "tapestry/core/tensor.h"

namespace tapestry::distributed {

/// True unless distinct elements of `t` certainly have distinct addresses: writing it would be ambiguous.
bool may_overlap_itself(const Tensor& t);
/// True if the memory that the two span has bytes in common.
bool may_overlap(const Tensor& a, const Tensor& b);

/// A tensor's elements in row-major order: its own memory where it is so already, else a copy. In the calling
/// thread, with plain loops.
class Dense {
 public:
  enum class Fill { no, yes, copy };  ///< copy: never the tensor's own memory
  Dense(const Tensor& t, Fill fill);

  void* data() const { return copy_ ? copy_.get() : t_.raw_data(); }
  /// Makes the tensor hold what is in data().
  void store() const;

 private:
  const Tensor t_;
  std::unique_ptr<std::byte[]> copy_;
};

}  // namespace tapestry::distributed
