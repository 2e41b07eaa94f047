#pragma once
// What the operations of several inputs check, and copies that the tape does not see. Not in
// tapestry.h: for the .cpp files here.
#include "tapestry/autograd/ops/view.h"
#include "tapestry/autograd/tape.h"

namespace tapestry::autograd {

/// Throws TypeError or DeviceError unless the optional operand `t`, called `what`, has x's dtype and device.
inline void check_matches(const char* op, const Tensor& x, const Tensor& t, const char* what) {
  if (!t.defined()) return;
  check<TypeError>(t.dtype() == x.dtype(), "[", op, "] ", what, " has dtype ", t.dtype(),
                   " but the input has ", x.dtype(), "; convert one with to(dtype)");
  check<DeviceError>(t.device() == x.device(), "[", op, "] ", what, " is on ", t.device(),
                     " but the input is on ", x.device(), "; move one with to(device)");
}

/// Throws ValueError unless the optional operand `t` is 1-d with n elements.
inline void check_vector(const char* op, const Tensor& t, const char* what, std::int64_t n) {
  check(!t.defined() || (t.dim() == 1 && t.size(0) == n), "[", op, "] ", what, " has shape ",
        t.defined() ? t.sizes() : Shape(), ", expected ", Shape(n));
}

/// Keeps `t` for backward if the gradient of `input` will be wanted, which is what needs it.
inline SavedTensor save_if(const Tensor& input, const Tensor& t) {
  return input.defined() && needs_grad(input) ? save(t) : SavedTensor();
}

/// contiguous(), unrecorded: for an operation that records itself.
inline Tensor raw_contiguous(const Tensor& t, MemoryFormat format = MemoryFormat::contiguous) {
  if (t.is_contiguous(format)) return t;
  const NoGradGuard guard;
  return contiguous(t, format);
}

}  // namespace tapestry::autograd
