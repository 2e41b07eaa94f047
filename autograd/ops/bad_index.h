#pragma once
// The cell in which a kernel reports the first index out of range (kernels/ops/index.h), and the error it
// becomes. Not in tapestry.h: for the .cpp files here.
#include "tapestry/core/tensor.h"
#include "tapestry/kernels/ops/index.h"

namespace tapestry::autograd {

class BadIndex {
 public:
  std::int64_t* cell() { return &first_; }

  /// Throws IndexError if the kernel met an index outside [0, limit) in `index` (dense, i64): `what` names
  /// it.
  void check(const char* op, const char* what, const Tensor& index, std::int64_t limit) const {
    if (first_ != kernels::kNoBadIndex) [[unlikely]]
      fail<IndexError>("[", op, "] ", what, " ", index.data<std::int64_t>()[first_], " at position ", first_,
                       " is outside [0, ", limit, "); correct it, or the number of classes or rows");
  }

 private:
  std::int64_t first_ = kernels::kNoBadIndex;
};

}  // namespace tapestry::autograd
