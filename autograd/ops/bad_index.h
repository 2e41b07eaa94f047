#pragma once
// The cell in which a kernel reports the first index out of range (kernels/ops/index.h), and the error it
// becomes. Not in tapestry.h: for the .cpp files here.
#include "tapestry/core/tensor.h"
#include "tapestry/kernels/ops/index.h"

namespace tapestry::autograd {

class BadIndex {
 public:
  explicit BadIndex(Device device);
  /// For a kernel on the device's current stream.
  std::int64_t* cell() { return page_locked_.defined() ? page_locked_.data<std::int64_t>() : &here_; }

  /// IndexError if the kernel met an index outside [0, limit) in `index` (dense, i64 or i32): `what` names
  /// it. On a CPU at once; on a CUDA device when this thread next waits for it (core/cuda/faults.h). `op` and
  /// `what` are literals.
  void check(const char* op, const char* what, const Tensor& index, std::int64_t limit);

 private:
  std::int64_t here_ = kernels::kNoBadIndex;
  Tensor page_locked_;  // where a GPU reaches it; undefined for a CPU
};

}  // namespace tapestry::autograd
