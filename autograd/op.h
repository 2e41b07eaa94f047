#pragma once
// The registry of operations. Every public operation has one Op at file scope in autograd/ops/<family>.cpp;
// its name appears in errors and on the tape, and the test suite demands a test of each kind for each Op that
// exists.
#include "tapestry/core/dtype.h"

namespace tapestry::autograd {

enum class Grad : bool { none, differentiable };

class Op {
 public:
  /// `dtypes`: those of the main input (for factories: of the result) that the operation takes.
  Op(const char* op_name, Grad grad, DTypeSet dtype_set);
  Op(const Op&) = delete;
  Op& operator=(const Op&) = delete;

  const char* const name;
  const bool differentiable;
  const DTypeSet dtypes;

  /// All operations, linked through next(); order unspecified.
  static const Op* first();
  const Op* next() const { return next_; }

  /// Throws TypeError unless the operation takes this dtype.
  void check_dtype(DType dtype) const {
    if (!contains(dtypes, dtype)) [[unlikely]]
      wrong_dtype(dtype);
  }

 private:
  [[noreturn]] void wrong_dtype(DType dtype) const;
  const Op* next_;
};

}  // namespace tapestry::autograd
