#pragma once
// The registry of operations. Every public operation has one Op object at file scope in
// autograd/ops/<family>.cpp. The name of the Op appears in errors and on the tape. The test autograd.matrix
// requires each kind of test for each registered Op.
#include <cstdint>

#include "tapestry/core/context.h"
#include "tapestry/core/dtype.h"

namespace tapestry::autograd {

/// Whether an operation has a gradient. `twice` means that the gradient has gradients too: all steps of the
/// backward are recorded when a pass runs with create_graph. With `differentiable`, such a pass throws an
/// error that names the operation.
enum class Grad : std::uint8_t { none, differentiable, twice };

class Op {
 public:
  /// `dtype_set` has the dtypes that the operation supports for its main input or, for a factory, its result.
  /// `cast` is what autocast does on GPUs.
  Op(const char* op_name, Grad grad, DTypeSet dtype_set, CastPolicy cast = CastPolicy::none);
  Op(const Op&) = delete;
  Op& operator=(const Op&) = delete;

  const char* const name;
  const bool differentiable, twice;
  const DTypeSet dtypes;
  const CastPolicy cast_on_gpus;

  /// The first of all operations; next() gives the others, in unspecified order.
  static const Op* first();
  const Op* next() const { return next_; }

  /// Throws TypeError unless the operation supports this dtype.
  void check_dtype(DType dtype) const {
    if (!contains(dtypes, dtype)) [[unlikely]]
      wrong_dtype(dtype);
  }

 private:
  [[noreturn]] void wrong_dtype(DType dtype) const;
  const Op* next_;
};

}  // namespace tapestry::autograd
