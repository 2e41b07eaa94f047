// Pointwise operations that are computed by other operations, out of place and in place.
#include "tapestry/autograd/ops/composite.h"

#include <array>
#include <cmath>
#include <limits>

#include "tapestry/autograd/internal/autocast.h"
#include "tapestry/autograd/ops/arithmetic.h"
#include "tapestry/autograd/ops/compare.h"
#include "tapestry/autograd/ops/copy.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementary.h"
#include "tapestry/autograd/ops/functions.h"
#include "tapestry/autograd/ops/internal/binary.h"
#include "tapestry/kernels/ops/arithmetic.h"
#include "tapestry/kernels/ops/compare.h"
#include "tapestry/kernels/ops/composite.h"
#include "tapestry/kernels/ops/elementary.h"

namespace tapestry {

using namespace autograd;  // NOLINT: this file is autograd's

namespace {

const Op kSquare{"square", Grad::twice, kAllDTypes};
const Op kReciprocal{"reciprocal", Grad::twice, kAllDTypes};
const Op kFrac{"frac", Grad::twice, kFloats};
const Op kIsFinite{"isfinite", Grad::none, kAllDTypes};
const Op kIsInf{"isinf", Grad::none, kAllDTypes};
const Op kLerp{"lerp", Grad::twice, kFloats};
const Op kAddcmul{"addcmul", Grad::twice, kNumbers};
const Op kAddcdiv{"addcdiv", Grad::twice, kFloats};
const Op kMaskedFill{"masked_fill", Grad::twice, kAllDTypes};
const Op kLogicalAnd{"logical_and", Grad::none, kAllDTypes};
const Op kLogicalOr{"logical_or", Grad::none, kAllDTypes};
const Op kLogicalXor{"logical_xor", Grad::none, kAllDTypes};
const Op kLogicalNot{"logical_not", Grad::none, kAllDTypes};
const Op kBitwiseNot{"bitwise_not", Grad::none, kIntegers | bit(DType::boolean)};

void check_input(const Op& op, const Tensor& x) {
  tapestry::detail::check_defined(op.name, x);
  op.check_dtype(x.dtype());
}
template <class... T>
void check_inputs(const Op& op, const Tensor& a, const T&... rest) {
  (check_operands(op, a, rest), ...);
  op.check_dtype(a.dtype());
  (op.check_dtype(rest.dtype()), ...);
}

}  // namespace

Tensor square(const Tensor& x) {
  check_input(kSquare, x);
  return pow(x.dtype() == DType::boolean ? x.to(DType::i64) : x, 2);
}
Tensor reciprocal(const Tensor& x) {
  if (const autograd::Autocast cast(kReciprocal, x); cast) return reciprocal(cast(x));
  check_input(kReciprocal, x);
  return rdiv(1, x);
}
Tensor frac(const Tensor& x) {
  check_input(kFrac, x);
  const Tensor y = apply(kernels::slot<kernels::Frac>, x);
  if (recording(x)) record(kFrac, y, {&x}, [](Backward& b) { b.set(0, b.grad()); });
  return y;
}

Tensor isfinite(const Tensor& x) {
  check_input(kIsFinite, x);
  if (!is_floating(x.dtype())) return ones_like(x, DType::boolean);
  return lt(abs(x.detach()), std::numeric_limits<double>::infinity());  // false for NaN
}
Tensor isinf(const Tensor& x) {
  check_input(kIsInf, x);
  if (!is_floating(x.dtype())) return zeros_like(x, DType::boolean);
  return eq(abs(x.detach()), std::numeric_limits<double>::infinity());
}

namespace {

// True if the operands have one floating dtype, so that a kernel can read them as they are.
template <class... T>
bool match(const Tensor& first, const T&... rest) {
  return is_floating(first.dtype()) && ((rest.dtype() == first.dtype()) && ...);
}

// x + factor a b, or x + factor a / b.
Tensor add_scaled(const Op& op, const Tensor& x, const Tensor& a, const Tensor& b, double factor,
                  bool divides) {
  const Shape sizes = broadcast_shapes(op.name, x.sizes(), broadcast_shapes(op.name, a.sizes(), b.sizes()));
  const Tensor y = result_like(sizes, x.dtype(), {&x, &a, &b});
  kernels::slot<kernels::AddScaled>(y.device(), y.dtype(), {planned(y, x, a, b), {factor, divides}});
  if (!recording(x, a, b)) return y;
  const bool reads_b = needs_grad(a) || (divides && needs_grad(b));
  record(op, y, {&x, &a, &b},
         [shapes = std::array{x.sizes(), a.sizes(), b.sizes()}, a = save_if(b, a),
          b = reads_b ? save(b) : SavedTensor(), factor, divides](Backward& g) {
           const Tensor& dy = g.grad();
           const auto set = [&](std::uint32_t i, const Tensor& d) {
             g.set(i, reduce_to(d, shapes[i], d.dtype()));
           };
           if (g.needs(0)) set(0, dy);
           if (g.needs(1)) set(1, mul(divides ? dy / g.saved(b) : dy * g.saved(b), factor));
           if (!g.needs(2)) return;
           const Tensor first = g.saved(a);
           set(2, mul(divides ? dy * (first / g.saved(b) / g.saved(b)) : dy * first,
                      divides ? -factor : factor));
         });
  return y;
}

}  // namespace

Tensor lerp(const Tensor& a, const Tensor& b, double weight) {
  check_inputs(kLerp, a, b);
  if (match(a, b)) {
    const Tensor y = result_like(broadcast_shapes(kLerp.name, a.sizes(), b.sizes()), a.dtype(), {&a, &b});
    kernels::slot<kernels::Lerp>(y.device(), y.dtype(), {planned(y, a, b), {weight}});
    if (recording(a, b))
      record(kLerp, y, {&a, &b}, [from = a.sizes(), to = b.sizes(), weight](Backward& g) {
        const Tensor& dy = g.grad();
        if (g.needs(0)) g.set(0, reduce_to(mul(dy, 1 - weight), from, dy.dtype()));
        if (g.needs(1)) g.set(1, reduce_to(mul(dy, weight), to, dy.dtype()));
      });
    return y;
  }
  const Tensor difference = sub(b, a);
  return weight < 0.5 ? add(a, mul(difference, weight)) : sub(b, mul(difference, 1 - weight));
}
Tensor lerp(const Tensor& a, const Tensor& b, const Tensor& weight) {
  check_inputs(kLerp, a, b, weight);
  const Tensor difference = sub(b, a);
  return where(lt(weight.detach(), 0.5), add(a, mul(difference, weight)),
               sub(b, mul(difference, rsub(1, weight))));
}
Tensor addcmul(const Tensor& x, const Tensor& a, const Tensor& b, const Scalar& value) {
  if (const autograd::Autocast cast(kAddcmul, x, a, b); cast)
    return addcmul(cast(x), cast(a), cast(b), value);
  check_inputs(kAddcmul, x, a, b);
  if (match(x, a, b)) return add_scaled(kAddcmul, x, a, b, value.to_double(), false);
  const Tensor product = mul(a, b);
  check<TypeError>(is_floating(product.dtype()) || !value.is_real(), "[addcmul] value ", value.to_double(),
                   " is real, but the tensors are ", product.dtype(), "; convert them to a floating dtype");
  return add(x, value.to_double() == 1 ? product : mul(product, value));
}
Tensor addcdiv(const Tensor& x, const Tensor& a, const Tensor& b, const Scalar& value) {
  if (const autograd::Autocast cast(kAddcdiv, x, a, b); cast)
    return addcdiv(cast(x), cast(a), cast(b), value);
  check_inputs(kAddcdiv, x, a, b);
  if (match(x, a, b)) return add_scaled(kAddcdiv, x, a, b, value.to_double(), true);
  const Tensor quotient = div(a, b);
  return add(x, value.to_double() == 1 ? quotient : mul(quotient, value));
}

namespace {

void check_mask(const Tensor& x, const Tensor& mask) {
  check_operands(kMaskedFill, x, mask);
  check<TypeError>(mask.dtype() == DType::boolean, "[masked_fill] the mask is ", mask.dtype(),
                   "; give a bool tensor, as comparisons do");
}
// The number as a 0-d tensor of x's dtype. Unlike fill_(), it refuses finite numbers that f16 and bf16 round
// to an infinity, as PyTorch does.
Tensor filling(const Tensor& x, const Scalar& value) {
  const Scalar element = as_element(kMaskedFill.name, value, x.dtype());
  const double limit = x.dtype() == DType::f16    ? 65520
                       : x.dtype() == DType::bf16 ? 0x1.ffp127
                                                  : std::numeric_limits<double>::infinity();
  const double size = std::abs(element.to_double());
  check(!(size >= limit) || std::isinf(size), "[masked_fill] ", element.to_double(), " is too large for ",
        x.dtype(), "; give a smaller number or an infinity");
  return scalar_tensor(element, {x.dtype(), x.device()});
}
Tensor filling(const Tensor& x, const Tensor& value) {
  check_operands(kMaskedFill, x, value);
  check(value.dim() == 0, "[masked_fill] the value has shape ", value.sizes(),
        "; give a number or a 0-d tensor, or use where()");
  return value.to(x.dtype());
}
template <class Value>
Tensor filled(const Tensor& x, const Tensor& mask, const Value& value) {
  check_mask(x, mask);
  return where(mask, filling(x, value), x);
}
template <class Value>
const Tensor& fill_where(const Tensor& target, const Tensor& mask, const Value& value,
                         std::initializer_list<const Tensor*> others) {
  check_mask(target, mask);
  check_broadcasts_to(kMaskedFill, target, mask);
  const Tensor v = filling(target, value);
  in_place(
      kMaskedFill, target, others,
      [&] {
        const Tensor m = operand_for(target, mask, DType::boolean);
        kernels::where(target.device(), target.dtype(), planned(target, m, v, target));
      },
      [&](const Tensor& old) { return where(mask, v, old); });
  return target;
}

Tensor to_bool(const Op& op, const Tensor& x) {
  tapestry::detail::check_defined(op.name, x);
  return converted(x.detach(), DType::boolean);
}

}  // namespace

Tensor masked_fill(const Tensor& x, const Tensor& mask, const Scalar& value) {
  return filled(x, mask, value);
}
Tensor masked_fill(const Tensor& x, const Tensor& mask, const Tensor& value) {
  return filled(x, mask, value);
}

Tensor logical_and(const Tensor& a, const Tensor& b) {
  return binary<kernels::BitAnd>(to_bool(kLogicalAnd, a), to_bool(kLogicalAnd, b), kLogicalAnd);
}
Tensor logical_or(const Tensor& a, const Tensor& b) {
  return binary<kernels::BitOr>(to_bool(kLogicalOr, a), to_bool(kLogicalOr, b), kLogicalOr);
}
Tensor logical_xor(const Tensor& a, const Tensor& b) {
  return binary<kernels::BitXor>(to_bool(kLogicalXor, a), to_bool(kLogicalXor, b), kLogicalXor);
}
Tensor logical_not(const Tensor& x) {
  check_input(kLogicalNot, x);
  if (x.dtype() == DType::boolean) {
    // A bool is a byte of 0 or 1. Loops over bytes are vectorised; loops over bool are not.
    const Tensor y = result_like(x.sizes(), DType::boolean, {&x});
    const Tensor one = scalar_tensor(true, {DType::boolean, x.device()});
    kernels::slot<kernels::BitXor>(y.device(), DType::u8, planned(y, x, one));
    return y;
  }
  return eq(x, 0);
}

Tensor bitwise_not(const Tensor& x) {
  check_input(kBitwiseNot, x);
  const Scalar ones = x.dtype() == DType::boolean ? Scalar(true) : Scalar(-1);
  return binary<kernels::BitXor>(x, number_like(ones, x), kBitwiseNot);
}
Tensor bitwise_and(const Tensor& a, const Tensor& b) { return binary<kernels::BitAnd>(a, b); }
Tensor bitwise_or(const Tensor& a, const Tensor& b) { return binary<kernels::BitOr>(a, b); }
Tensor bitwise_xor(const Tensor& a, const Tensor& b) { return binary<kernels::BitXor>(a, b); }
Tensor bitwise_left_shift(const Tensor& a, const Tensor& b) { return binary<kernels::ShiftLeft>(a, b); }
Tensor bitwise_right_shift(const Tensor& a, const Tensor& b) { return binary<kernels::ShiftRight>(a, b); }
namespace {

template <class Row>
Tensor with_number(const Tensor& a, const Scalar& b) {
  tapestry::detail::check_defined(row_op<Row>.name, a);
  return binary<Row>(a, number_like(b, a));
}

}  // namespace
Tensor bitwise_and(const Tensor& a, const Scalar& b) { return with_number<kernels::BitAnd>(a, b); }
Tensor bitwise_or(const Tensor& a, const Scalar& b) { return with_number<kernels::BitOr>(a, b); }
Tensor bitwise_xor(const Tensor& a, const Scalar& b) { return with_number<kernels::BitXor>(a, b); }
Tensor bitwise_left_shift(const Tensor& a, const Scalar& b) { return with_number<kernels::ShiftLeft>(a, b); }
Tensor bitwise_right_shift(const Tensor& a, const Scalar& b) {
  return with_number<kernels::ShiftRight>(a, b);
}

Tensor Tensor::square() const { return tapestry::square(*this); }
Tensor Tensor::reciprocal() const { return tapestry::reciprocal(*this); }
Tensor Tensor::frac() const { return tapestry::frac(*this); }
Tensor Tensor::isfinite() const { return tapestry::isfinite(*this); }
Tensor Tensor::isinf() const { return tapestry::isinf(*this); }
Tensor Tensor::logical_not() const { return tapestry::logical_not(*this); }
Tensor Tensor::bitwise_not() const { return tapestry::bitwise_not(*this); }
Tensor Tensor::isnan() const { return tapestry::isnan(*this); }
Tensor Tensor::lerp(const Tensor& end, double weight) const { return tapestry::lerp(*this, end, weight); }
Tensor Tensor::lerp(const Tensor& end, const Tensor& weight) const {
  return tapestry::lerp(*this, end, weight);
}
Tensor Tensor::addcmul(const Tensor& a, const Tensor& b, const Scalar& value) const {
  return tapestry::addcmul(*this, a, b, value);
}
Tensor Tensor::addcdiv(const Tensor& a, const Tensor& b, const Scalar& value) const {
  return tapestry::addcdiv(*this, a, b, value);
}
Tensor Tensor::masked_fill(const Tensor& mask, const Scalar& value) const {
  return tapestry::masked_fill(*this, mask, value);
}
Tensor Tensor::masked_fill(const Tensor& mask, const Tensor& value) const {
  return tapestry::masked_fill(*this, mask, value);
}
Tensor Tensor::logical_and(const Tensor& other) const { return tapestry::logical_and(*this, other); }
Tensor Tensor::logical_or(const Tensor& other) const { return tapestry::logical_or(*this, other); }
Tensor Tensor::logical_xor(const Tensor& other) const { return tapestry::logical_xor(*this, other); }
Tensor Tensor::bitwise_and(const Tensor& other) const { return tapestry::bitwise_and(*this, other); }
Tensor Tensor::bitwise_and(const Scalar& other) const { return tapestry::bitwise_and(*this, other); }
Tensor Tensor::bitwise_or(const Tensor& other) const { return tapestry::bitwise_or(*this, other); }
Tensor Tensor::bitwise_or(const Scalar& other) const { return tapestry::bitwise_or(*this, other); }
Tensor Tensor::bitwise_xor(const Tensor& other) const { return tapestry::bitwise_xor(*this, other); }
Tensor Tensor::bitwise_xor(const Scalar& other) const { return tapestry::bitwise_xor(*this, other); }
Tensor Tensor::bitwise_left_shift(const Tensor& other) const {
  return tapestry::bitwise_left_shift(*this, other);
}
Tensor Tensor::bitwise_left_shift(const Scalar& other) const {
  return tapestry::bitwise_left_shift(*this, other);
}
Tensor Tensor::bitwise_right_shift(const Tensor& other) const {
  return tapestry::bitwise_right_shift(*this, other);
}
Tensor Tensor::bitwise_right_shift(const Scalar& other) const {
  return tapestry::bitwise_right_shift(*this, other);
}

const Tensor& Tensor::square_() const { return compute_in_place(kSquare, *this, {}, &tapestry::square); }
const Tensor& Tensor::reciprocal_() const {
  return compute_in_place(kReciprocal, *this, {}, &tapestry::reciprocal);
}
const Tensor& Tensor::frac_() const { return compute_in_place(kFrac, *this, {}, &tapestry::frac); }
const Tensor& Tensor::logical_not_() const {
  return compute_in_place(kLogicalNot, *this, {}, &tapestry::logical_not);
}
const Tensor& Tensor::bitwise_not_() const {
  return compute_in_place(kBitwiseNot, *this, {}, &tapestry::bitwise_not);
}
const Tensor& Tensor::lerp_(const Tensor& end, double weight) const {
  return compute_in_place(kLerp, *this, {&end},
                          [&](const Tensor& x) { return tapestry::lerp(x, end, weight); });
}
const Tensor& Tensor::lerp_(const Tensor& end, const Tensor& weight) const {
  return compute_in_place(kLerp, *this, {&end, &weight},
                          [&](const Tensor& x) { return tapestry::lerp(x, end, weight); });
}
const Tensor& Tensor::addcmul_(const Tensor& a, const Tensor& b, const Scalar& value) const {
  return compute_in_place(kAddcmul, *this, {&a, &b},
                          [&](const Tensor& x) { return tapestry::addcmul(x, a, b, value); });
}
const Tensor& Tensor::addcdiv_(const Tensor& a, const Tensor& b, const Scalar& value) const {
  return compute_in_place(kAddcdiv, *this, {&a, &b},
                          [&](const Tensor& x) { return tapestry::addcdiv(x, a, b, value); });
}
const Tensor& Tensor::masked_fill_(const Tensor& mask, const Scalar& value) const {
  return fill_where(*this, mask, value, {});
}
const Tensor& Tensor::masked_fill_(const Tensor& mask, const Tensor& value) const {
  return fill_where(*this, mask, value, {&value});
}
const Tensor& Tensor::logical_and_(const Tensor& other) const {
  return compute_in_place(kLogicalAnd, *this, {},
                          [&](const Tensor& x) { return tapestry::logical_and(x, other); });
}
const Tensor& Tensor::logical_or_(const Tensor& other) const {
  return compute_in_place(kLogicalOr, *this, {},
                          [&](const Tensor& x) { return tapestry::logical_or(x, other); });
}
const Tensor& Tensor::logical_xor_(const Tensor& other) const {
  return compute_in_place(kLogicalXor, *this, {},
                          [&](const Tensor& x) { return tapestry::logical_xor(x, other); });
}
const Tensor& Tensor::bitwise_and_(const Tensor& other) const {
  return binary_in_place<kernels::BitAnd>(*this, other);
}
const Tensor& Tensor::bitwise_and_(const Scalar& other) const {
  return bitwise_and_(number_like(other, *this));
}
const Tensor& Tensor::bitwise_or_(const Tensor& other) const {
  return binary_in_place<kernels::BitOr>(*this, other);
}
const Tensor& Tensor::bitwise_or_(const Scalar& other) const {
  return bitwise_or_(number_like(other, *this));
}
const Tensor& Tensor::bitwise_xor_(const Tensor& other) const {
  return binary_in_place<kernels::BitXor>(*this, other);
}
const Tensor& Tensor::bitwise_xor_(const Scalar& other) const {
  return bitwise_xor_(number_like(other, *this));
}
const Tensor& Tensor::bitwise_left_shift_(const Tensor& other) const {
  return binary_in_place<kernels::ShiftLeft>(*this, other);
}
const Tensor& Tensor::bitwise_left_shift_(const Scalar& other) const {
  return bitwise_left_shift_(number_like(other, *this));
}
const Tensor& Tensor::bitwise_right_shift_(const Tensor& other) const {
  return binary_in_place<kernels::ShiftRight>(*this, other);
}
const Tensor& Tensor::bitwise_right_shift_(const Scalar& other) const {
  return bitwise_right_shift_(number_like(other, *this));
}

}  // namespace tapestry
