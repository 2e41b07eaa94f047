// Arithmetic with tensors and numbers, out of place and in place.
#include "tapestry/autograd/ops/arithmetic.h"

#include "tapestry/autograd/ops/functions.h"
#include "tapestry/autograd/ops/internal/common.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/kernels/ops/arithmetic.h"
#include "tapestry/kernels/ops/copy.h"

namespace tapestry {

using namespace autograd;  // NOLINT: this file is autograd's
using kernels::slot;
using BinarySlot = kernels::Slot<kernels::Elementwise<3>>;
using TernarySlot = kernels::Slot<kernels::Elementwise<4>>;
using ScalarSlot = kernels::Slot<kernels::ScalarArgs>;

namespace {

const Op kAdd{"add", Grad::differentiable, kAllDTypes};
const Op kSub{"sub", Grad::differentiable, kNumbers};
const Op kMul{"mul", Grad::differentiable, kAllDTypes};
const Op kDiv{"div", Grad::differentiable, kAllDTypes};
const Op kPow{"pow", Grad::differentiable, kNumbers};
const Op kMaximum{"maximum", Grad::differentiable, kAllDTypes};
const Op kMinimum{"minimum", Grad::differentiable, kAllDTypes};

// The dtype of a real-valued result: f32 for integers and bools.
DType real(DType t) { return is_floating(t) ? t : DType::f32; }

// Checks the operands of an operation that does not take bools.
void check_numbers(const Op& op, const Tensor& a, const Tensor& b) {
  check_operands(op, a, b);
  op.check_dtype(a.dtype());
  op.check_dtype(b.dtype());
}

// Runs the kernel on a and b, converted to `dtype`, over their broadcast shape.
Tensor binary(const Op& op, const BinarySlot& kernel, const Tensor& a, const Tensor& b, DType dtype) {
  if (a.dtype() != dtype) [[unlikely]]
    return binary(op, kernel, converted(a, dtype), b, dtype);
  if (b.dtype() != dtype) [[unlikely]]
    return binary(op, kernel, a, converted(b, dtype), dtype);
  Tensor y = a.sizes() == b.sizes()
                 ? result_like(a.sizes(), dtype, {&a, &b})
                 : result_like(broadcast_shapes(op.name, a.sizes(), b.sizes()), dtype, {&a, &b});
  kernel(y.device(), dtype, planned(y, a, b));
  return y;
}

// Runs the kernel on x, converted to `dtype`, and s.
Tensor with_scalar(const ScalarSlot& kernel, const Tensor& x, const Scalar& s, DType dtype) {
  const Tensor in = converted(x, dtype);
  Tensor y = result_like(x.sizes(), dtype, {&in});
  kernel(y.device(), dtype, {planned(y, in), s});
  return y;
}
DType checked_promotion(const Op& op, const Tensor& x, const Scalar& s) {
  tapestry::detail::check_defined(op.name, x);
  op.check_dtype(x.dtype());
  return s.promote_with(x.dtype());
}

// Changes target to kernel(target, other), or to fresh(target) if the tape must record the change.
template <class Fresh>
void binary_in_place(const Op& op, const BinarySlot& kernel, const Tensor& target, const Tensor& other,
                     DType dtype, Fresh fresh) {
  check_stores(op, target, dtype);
  check(target.sizes() == other.sizes() ||
            broadcast_shapes(op.name, target.sizes(), other.sizes()) == target.sizes(),
        "[", op.name, "] an operand of shape ", other.sizes(), " does not broadcast to the shape ",
        target.sizes(), " of the tensor changed in place; use the out-of-place operation");
  in_place(
      op, target, {&other},
      [&] {
        if (target.dtype() == dtype) {
          const Tensor b = operand_for(target, other, dtype);
          kernel(target.device(), dtype, planned(target, target, b));
        } else {
          const Tensor y = binary(op, kernel, target, other, dtype);
          kernels::copy(target.device(), target.dtype(), planned(target, y));
        }
      },
      [&](const Tensor& old) { return to(fresh(old), target.device(), target.dtype()); });
}

template <class Fresh>
void scalar_in_place(const Op& op, const ScalarSlot& kernel, const Tensor& target, const Scalar& s,
                     DType dtype, Fresh fresh) {
  check_stores(op, target, dtype);
  in_place(
      op, target, {},
      [&] {
        kernel(target.device(), dtype, {planned(target, target), s});
      },
      fresh);
}

Scalar negated(const Scalar& s) {
  if (s.is_real()) return -s.to_double();
  return static_cast<std::int64_t>(std::uint64_t{0} - static_cast<std::uint64_t>(s.to_int()));
}

// Saves `t` if `other` needs a gradient. For a tensor that only the gradient of `other` uses.
SavedTensor save_for(const Tensor& other, const Tensor& t) {
  return needs_grad(other) ? save(t) : SavedTensor();
}

}  // namespace

Tensor add(const Tensor& a, const Tensor& b) {
  check_operands(kAdd, a, b);
  Tensor y = binary(kAdd, slot<kernels::Add>, a, b, promoted(a, b));
  if (recording(a, b)) record_binary(kAdd, y, a, b, [](Backward& g, std::uint32_t) { return g.grad(); });
  return y;
}
Tensor add(const Tensor& a, const Scalar& b) {
  Tensor y = with_scalar(kernels::add_scalar, a, b, checked_promotion(kAdd, a, b));
  if (recording(a)) record(kAdd, y, {&a}, [](Backward& g) { g.set(0, g.grad()); });
  return y;
}

Tensor sub(const Tensor& a, const Tensor& b) {
  check_numbers(kSub, a, b);
  Tensor y = binary(kSub, slot<kernels::Sub>, a, b, promoted(a, b));
  if (recording(a, b))
    record_binary(kSub, y, a, b,
                  [](Backward& g, std::uint32_t i) { return i == 0 ? g.grad() : neg(g.grad()); });
  return y;
}
Tensor sub(const Tensor& a, const Scalar& b) {
  Tensor y = with_scalar(kernels::add_scalar, a, negated(b), checked_promotion(kSub, a, b));
  if (recording(a)) record(kSub, y, {&a}, [](Backward& g) { g.set(0, g.grad()); });
  return y;
}
Tensor rsub(const Scalar& a, const Tensor& b) {
  Tensor y = with_scalar(kernels::rsub_scalar, b, a, checked_promotion(kSub, b, a));
  if (recording(b)) record(kSub, y, {&b}, [](Backward& g) { g.set(0, neg(g.grad())); });
  return y;
}

Tensor mul(const Tensor& a, const Tensor& b) {
  check_operands(kMul, a, b);
  Tensor y = binary(kMul, slot<kernels::Mul>, a, b, promoted(a, b));
  if (recording(a, b))
    record_binary(kMul, y, a, b, [a = save_for(b, a), b = save_for(a, b)](Backward& g, std::uint32_t i) {
      return mul(g.grad(), g.saved(i == 0 ? b : a));
    });
  return y;
}
Tensor mul(const Tensor& a, const Scalar& b) {
  Tensor y = with_scalar(kernels::mul_scalar, a, b, checked_promotion(kMul, a, b));
  if (recording(a)) record(kMul, y, {&a}, [b](Backward& g) { g.set(0, mul(g.grad(), b)); });
  return y;
}

Tensor div(const Tensor& a, const Tensor& b) {
  check_operands(kDiv, a, b);
  Tensor y = binary(kDiv, slot<kernels::Div>, a, b, real(promoted(a, b)));
  if (recording(a, b))
    record_binary(kDiv, y, a, b, [a = save_for(b, a), b = save(b)](Backward& g, std::uint32_t i) {
      const DType t = g.grad().dtype();
      if (i == 0) return div(g.grad(), g.saved(b));
      return apply(slot<kernels::DivBackward>, g.grad(), converted(g.saved(a), t), converted(g.saved(b), t));
    });
  return y;
}
Tensor div(const Tensor& a, const Scalar& b) {
  Tensor y = with_scalar(kernels::div_scalar, a, b, real(checked_promotion(kDiv, a, b)));
  if (recording(a)) record(kDiv, y, {&a}, [b](Backward& g) { g.set(0, div(g.grad(), b)); });
  return y;
}
Tensor rdiv(const Scalar& a, const Tensor& b) {
  Tensor y = with_scalar(kernels::rdiv_scalar, b, a, real(checked_promotion(kDiv, b, a)));
  if (recording(b))
    record(kDiv, y, {&b}, [b = save(b), y = save_output(y)](Backward& g) {
      g.set(0, neg(div(mul(g.grad(), g.saved(y)), g.saved(b))));
    });
  return y;
}

Tensor pow(const Tensor& a, const Tensor& b) {
  check_numbers(kPow, a, b);
  Tensor y = binary(kPow, slot<kernels::Pow>, a, b, promoted(a, b));
  if (recording(a, b))
    record_binary(kPow, y, a, b, [a = save(a), b = save(b)](Backward& g, std::uint32_t i) {
      const DType t = g.grad().dtype();
      const TernarySlot& backward =
          i == 0 ? slot<kernels::PowBackwardBase> : slot<kernels::PowBackwardExponent>;
      return apply(backward, g.grad(), converted(g.saved(a), t), converted(g.saved(b), t));
    });
  return y;
}
namespace {
DType checked_power(const Tensor& a, const Scalar& b) {
  const DType dtype = checked_promotion(kPow, a, b);
  if (is_floating(dtype)) return dtype;
  check(b.to_int() >= 0, "[pow] integers to a negative power, ", b.to_int(),
        ", are no integers; convert to a floating dtype first");
  check(b.to_int() <= integer_range(dtype).highest, "[pow] the exponent ", b.to_int(), " is more than ",
        dtype, " can hold; convert to a wider dtype first");
  return dtype;
}
}  // namespace
Tensor pow(const Tensor& a, const Scalar& b) {
  const DType dtype = checked_power(a, b);
  Tensor y = with_scalar(kernels::pow_scalar, a, b, dtype);
  if (recording(a))
    record(kPow, y, {&a}, [a = save(a), b](Backward& g) {
      g.set(0, apply_with(kernels::pow_scalar_backward, std::tuple(b), g.grad(), g.saved(a)));
    });
  return y;
}

namespace {

// maximum or minimum. The gradient of b is computed by the kernel for the gradient of a, with a and b
// exchanged.
Tensor extremum(const Op& op, const BinarySlot& kernel, const TernarySlot& backward, const Tensor& a,
                const Tensor& b) {
  check_operands(op, a, b);
  Tensor y = binary(op, kernel, a, b, promoted(a, b));
  if (recording(a, b))
    record_binary(op, y, a, b, [a = save(a), b = save(b), &backward](Backward& g, std::uint32_t i) {
      const DType t = g.grad().dtype();
      return apply(backward, g.grad(), converted(g.saved(i == 0 ? a : b), t),
                   converted(g.saved(i == 0 ? b : a), t));
    });
  return y;
}

}  // namespace

Tensor maximum(const Tensor& a, const Tensor& b) {
  return extremum(kMaximum, slot<kernels::Maximum>, slot<kernels::MaximumBackward>, a, b);
}
Tensor minimum(const Tensor& a, const Tensor& b) {
  return extremum(kMinimum, slot<kernels::Minimum>, slot<kernels::MinimumBackward>, a, b);
}

Tensor Tensor::add(const Tensor& other) const { return tapestry::add(*this, other); }
Tensor Tensor::sub(const Tensor& other) const { return tapestry::sub(*this, other); }
Tensor Tensor::mul(const Tensor& other) const { return tapestry::mul(*this, other); }
Tensor Tensor::div(const Tensor& other) const { return tapestry::div(*this, other); }
Tensor Tensor::add(const Scalar& other) const { return tapestry::add(*this, other); }
Tensor Tensor::sub(const Scalar& other) const { return tapestry::sub(*this, other); }
Tensor Tensor::mul(const Scalar& other) const { return tapestry::mul(*this, other); }
Tensor Tensor::div(const Scalar& other) const { return tapestry::div(*this, other); }
Tensor Tensor::pow(const Scalar& exponent) const { return tapestry::pow(*this, exponent); }
Tensor Tensor::pow(const Tensor& exponent) const { return tapestry::pow(*this, exponent); }

const Tensor& Tensor::add_(const Tensor& other) const {
  check_operands(kAdd, *this, other);
  binary_in_place(kAdd, slot<kernels::Add>, *this, other, promoted(*this, other),
                  [&](const Tensor& old) { return tapestry::add(old, other); });
  return *this;
}
const Tensor& Tensor::sub_(const Tensor& other) const {
  check_numbers(kSub, *this, other);
  binary_in_place(kSub, slot<kernels::Sub>, *this, other, promoted(*this, other),
                  [&](const Tensor& old) { return tapestry::sub(old, other); });
  return *this;
}
// The gradients of mul, div and pow need the old elements, so these are copied before they are overwritten.
const Tensor& Tensor::mul_(const Tensor& other) const {
  check_operands(kMul, *this, other);
  binary_in_place(kMul, slot<kernels::Mul>, *this, other, promoted(*this, other), [&](const Tensor& old) {
    const Tensor kept = tapestry::clone(old);
    return tapestry::mul(kept, other.is_same(*this) ? kept : other);
  });
  return *this;
}
const Tensor& Tensor::div_(const Tensor& other) const {
  check_operands(kDiv, *this, other);
  binary_in_place(kDiv, slot<kernels::Div>, *this, other, real(promoted(*this, other)),
                  [&](const Tensor& old) {
                    const Tensor kept = tapestry::clone(old);
                    return tapestry::div(kept, other.is_same(*this) ? kept : other);
                  });
  return *this;
}
const Tensor& Tensor::pow_(const Tensor& exponent) const {
  check_numbers(kPow, *this, exponent);
  binary_in_place(kPow, slot<kernels::Pow>, *this, exponent, promoted(*this, exponent),
                  [&](const Tensor& old) {
                    const Tensor kept = tapestry::clone(old);
                    return tapestry::pow(kept, exponent.is_same(*this) ? kept : exponent);
                  });
  return *this;
}

const Tensor& Tensor::add_(const Scalar& other) const {
  scalar_in_place(kAdd, kernels::add_scalar, *this, other, checked_promotion(kAdd, *this, other),
                  [&](const Tensor& old) { return tapestry::add(old, other); });
  return *this;
}
const Tensor& Tensor::sub_(const Scalar& other) const {
  scalar_in_place(kSub, kernels::add_scalar, *this, negated(other), checked_promotion(kSub, *this, other),
                  [&](const Tensor& old) { return tapestry::sub(old, other); });
  return *this;
}
const Tensor& Tensor::mul_(const Scalar& other) const {
  scalar_in_place(kMul, kernels::mul_scalar, *this, other, checked_promotion(kMul, *this, other),
                  [&](const Tensor& old) { return tapestry::mul(old, other); });
  return *this;
}
const Tensor& Tensor::div_(const Scalar& other) const {
  scalar_in_place(kDiv, kernels::div_scalar, *this, other, real(checked_promotion(kDiv, *this, other)),
                  [&](const Tensor& old) { return tapestry::div(old, other); });
  return *this;
}
const Tensor& Tensor::pow_(const Scalar& exponent) const {
  scalar_in_place(kPow, kernels::pow_scalar, *this, exponent, checked_power(*this, exponent),
                  [&](const Tensor& old) { return tapestry::pow(tapestry::clone(old), exponent); });
  return *this;
}

}  // namespace tapestry
