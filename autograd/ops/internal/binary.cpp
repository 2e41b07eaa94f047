#include "tapestry/autograd/ops/internal/binary.h"

namespace tapestry::autograd {

Tensor run_binary(const Op& op, const BinarySlot& kernel, const Tensor& a, const Tensor& b, DType dtype,
                  DType result) {
  if (a.dtype() != dtype) [[unlikely]]
    return run_binary(op, kernel, converted(a, dtype), b, dtype, result);
  if (b.dtype() != dtype) [[unlikely]]
    return run_binary(op, kernel, a, converted(b, dtype), dtype, result);
  Tensor y = a.sizes() == b.sizes()
                 ? result_like(a.sizes(), result, {&a, &b})
                 : result_like(broadcast_shapes(op.name, a.sizes(), b.sizes()), result, {&a, &b});
  kernel(y.device(), dtype, planned(y, a, b));
  return y;
}

Tensor run_with_number(const NumberSlot& kernel, const Tensor& x, const Scalar& s, DType dtype,
                       DType result) {
  const Tensor in = converted(x, dtype);
  Tensor y = result_like(x.sizes(), result, {&in});
  kernel(y.device(), dtype, {planned(y, in), {s}});
  return y;
}

void check_broadcasts_to(const Op& op, const Tensor& target, const Tensor& other) {
  check(target.sizes() == other.sizes() ||
            broadcast_shapes(op.name, target.sizes(), other.sizes()) == target.sizes(),
        "[", op.name, "] an operand of shape ", other.sizes(), " does not broadcast to the shape ",
        target.sizes(), " of the tensor changed in place; use the out-of-place operation");
}

}  // namespace tapestry::autograd
