// Arithmetic with tensors and numbers, out of place and in place. kernels/ops/arithmetic.h has the formulas
// and the gradients.
#include "tapestry/autograd/ops/arithmetic.h"

#include "tapestry/autograd/internal/autocast.h"
#include "tapestry/autograd/internal/record_observer.h"
#include "tapestry/autograd/ops/compare.h"
#include "tapestry/autograd/ops/composite.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementary.h"
#include "tapestry/autograd/ops/functions.h"
#include "tapestry/autograd/ops/internal/binary.h"
#include "tapestry/kernels/ops/arithmetic.h"
#include "tapestry/kernels/ops/functions.h"

namespace tapestry {

using namespace autograd;  // NOLINT: this file is autograd's

Tensor add(const Tensor& a, const Tensor& b) { return binary<kernels::Add>(a, b); }
Tensor sub(const Tensor& a, const Tensor& b) { return binary<kernels::Sub>(a, b); }
Tensor mul(const Tensor& a, const Tensor& b) { return binary<kernels::Mul>(a, b); }
Tensor div(const Tensor& a, const Tensor& b) { return binary<kernels::Div>(a, b); }
Tensor pow(const Tensor& a, const Tensor& b) { return binary<kernels::Pow>(a, b); }
Tensor maximum(const Tensor& a, const Tensor& b) { return binary<kernels::Maximum>(a, b); }
Tensor minimum(const Tensor& a, const Tensor& b) { return binary<kernels::Minimum>(a, b); }

Tensor add(const Tensor& a, const Scalar& b) { return binary_with<kernels::Add, 1>(a, b); }
Tensor sub(const Tensor& a, const Scalar& b) { return binary_with<kernels::Sub, 1>(a, b); }
Tensor mul(const Tensor& a, const Scalar& b) { return binary_with<kernels::Mul, 1>(a, b); }
Tensor div(const Tensor& a, const Scalar& b) { return binary_with<kernels::Div, 1>(a, b); }
Tensor rsub(const Scalar& a, const Tensor& b) { return binary_with<kernels::Sub, 0>(b, a); }
Tensor rdiv(const Scalar& a, const Tensor& b) {
  const DType dtype = checked_dtype<kernels::Div>(row_op<kernels::Div>, b, a);
  Tensor y = run_with_number(kernels::slot<kernels::WithNumber<kernels::Div, 0>>, b, a, dtype, dtype);
  const CallNote note({.linear = false});
  if (recording(b))
    record(row_op<kernels::Div>, y, {&b}, [b = save(b), y = save_output(y)](Backward& g) {
      g.set(0, neg(div(mul(g.grad(), g.saved(y)), g.saved(b))));
    });
  return y;
}

Tensor atan2(const Tensor& a, const Tensor& b) { return binary<kernels::Atan2>(a, b); }
Tensor Tensor::atan2(const Tensor& other) const { return tapestry::atan2(*this, other); }
const Tensor& Tensor::atan2_(const Tensor& other) const {
  return binary_in_place<kernels::Atan2>(*this, other);
}

// Remainders and rounded quotients.
namespace {

const Op kFloorDivide{"floor_divide", Grad::twice, kNumbers};

// Throws ValueError if integers on a CPU are divided by 0.
void check_divisor(const Op& op, const Tensor& a, const Tensor& b) {
  check_operands(op, a, b);
  op.check_dtype(a.dtype());
  op.check_dtype(b.dtype());
  if (is_floating(promoted(a, b)) || !b.device().is_cpu() || b.numel() == 0) return;
  check(eq(b, 0).sum().item<std::int64_t>() == 0, "[", op.name,
        "] an integer is divided by 0; convert to a floating dtype, or replace the zeros");
}
template <class Row>
Tensor checked_division(const Tensor& a, const Tensor& b) {
  check_divisor(row_op<Row>, a, b);
  return binary<Row>(a, b);
}
template <class Row>
const Tensor& checked_division_in_place(const Tensor& target, const Tensor& b) {
  check_divisor(row_op<Row>, target, b);
  return binary_in_place<Row>(target, b);
}

}  // namespace
Tensor fmod(const Tensor& a, const Tensor& b) { return checked_division<kernels::Fmod>(a, b); }
Tensor remainder(const Tensor& a, const Tensor& b) { return checked_division<kernels::Remainder>(a, b); }
Tensor floor_divide(const Tensor& a, const Tensor& b) {
  check_divisor(kFloorDivide, a, b);
  const DType dtype = checked_dtype<kernels::FloorDivide>(kFloorDivide, a, b);
  Tensor y = run_binary(kFloorDivide, kernels::slot<kernels::FloorDivide>, a, b, dtype, dtype);
  if (recording(a, b))
    record_binary(kFloorDivide, y, a, b,
                  [](const Backward& g, std::uint32_t) { return zeros_like(g.grad()); });
  return y;
}
Tensor fmod(const Tensor& a, const Scalar& b) { return fmod(a, number_like(b, a)); }
Tensor remainder(const Tensor& a, const Scalar& b) { return remainder(a, number_like(b, a)); }
Tensor remainder(const Scalar& a, const Tensor& b) { return remainder(number_like(a, b), b); }
Tensor floor_divide(const Tensor& a, const Scalar& b) { return floor_divide(a, number_like(b, a)); }
Tensor div(const Tensor& a, const Tensor& b, std::string_view rounding_mode) {
  if (rounding_mode == "floor") return floor_divide(a, b);
  check(rounding_mode == "trunc", "[div] rounding_mode is '", rounding_mode,
        "'; give 'floor' or 'trunc', or none for true division");
  check_operands(kFloorDivide, a, b);
  if (is_floating(promoted(a, b))) return trunc(div(a, b));
  return floor_divide(sub(a, fmod(a, b)), b);  // the division leaves no remainder
}
Tensor div(const Tensor& a, const Scalar& b, std::string_view rounding_mode) {
  return div(a, number_like(b, a), rounding_mode);
}
Tensor xlogy(const Tensor& a, const Tensor& b) { return binary<kernels::Xlogy>(a, b); }
Tensor hypot(const Tensor& a, const Tensor& b) { return binary<kernels::Hypot>(a, b); }
Tensor logaddexp(const Tensor& a, const Tensor& b) { return binary<kernels::LogAddExp>(a, b); }

Tensor Tensor::fmod(const Tensor& other) const { return tapestry::fmod(*this, other); }
Tensor Tensor::fmod(const Scalar& other) const { return tapestry::fmod(*this, other); }
Tensor Tensor::remainder(const Tensor& other) const { return tapestry::remainder(*this, other); }
Tensor Tensor::remainder(const Scalar& other) const { return tapestry::remainder(*this, other); }
Tensor Tensor::floor_divide(const Tensor& other) const { return tapestry::floor_divide(*this, other); }
Tensor Tensor::floor_divide(const Scalar& other) const { return tapestry::floor_divide(*this, other); }
Tensor Tensor::div(const Tensor& other, std::string_view rounding_mode) const {
  return tapestry::div(*this, other, rounding_mode);
}
Tensor Tensor::div(const Scalar& other, std::string_view rounding_mode) const {
  return tapestry::div(*this, other, rounding_mode);
}
Tensor Tensor::xlogy(const Tensor& other) const { return tapestry::xlogy(*this, other); }
Tensor Tensor::hypot(const Tensor& other) const { return tapestry::hypot(*this, other); }
Tensor Tensor::logaddexp(const Tensor& other) const { return tapestry::logaddexp(*this, other); }
const Tensor& Tensor::xlogy_(const Tensor& other) const {
  return binary_in_place<kernels::Xlogy>(*this, other);
}
const Tensor& Tensor::hypot_(const Tensor& other) const {
  return binary_in_place<kernels::Hypot>(*this, other);
}
Tensor Tensor::maximum(const Tensor& other) const { return tapestry::maximum(*this, other); }
Tensor Tensor::minimum(const Tensor& other) const { return tapestry::minimum(*this, other); }
const Tensor& Tensor::fmod_(const Tensor& other) const {
  return checked_division_in_place<kernels::Fmod>(*this, other);
}
const Tensor& Tensor::fmod_(const Scalar& other) const { return fmod_(number_like(other, *this)); }
const Tensor& Tensor::remainder_(const Tensor& other) const {
  return checked_division_in_place<kernels::Remainder>(*this, other);
}
const Tensor& Tensor::remainder_(const Scalar& other) const { return remainder_(number_like(other, *this)); }
const Tensor& Tensor::floor_divide_(const Tensor& other) const {
  return compute_in_place(kFloorDivide, *this, {&other},
                          [&](const Tensor& x) { return tapestry::floor_divide(x, other); });
}
const Tensor& Tensor::floor_divide_(const Scalar& other) const {
  return floor_divide_(number_like(other, *this));
}

// pow with a number as exponent is written by hand, because it has checks and formulas of its own.
namespace {

// Checks a^b. Returns the dtype of the result.
DType checked_power(const Tensor& a, const Scalar& b) {
  const DType dtype = checked_dtype<kernels::Pow>(row_op<kernels::Pow>, a, b);
  if (is_floating(dtype)) return dtype;
  check(b.to_int() >= 0, "[pow] integers to a negative power, ", b.to_int(),
        ", are no integers; convert to a floating dtype first");
  check(b.to_int() <= integer_range(dtype).highest, "[pow] the exponent ", b.to_int(), " is more than ",
        dtype, " can hold; convert to a wider dtype first");
  return dtype;
}

}  // namespace
Tensor pow(const Tensor& a, const Scalar& b) {
  if (const Autocast cast(row_op<kernels::Pow>, a); cast) return pow(cast(a), b);
  const DType dtype = checked_power(a, b);
  Tensor y = run_with_number(kernels::slot<kernels::PowScalar>, a, b, dtype, dtype);
  if (recording(a))
    record(row_op<kernels::Pow>, y, {&a}, [a = save(a), b](Backward& g) {
      const Tensor &dy = g.grad(), x = g.saved(a);
      if (!g.create_graph())
        return g.set(0, apply_with(kernels::slot<kernels::PowScalarBackward>, std::tuple(b), dy, x));
      const double n = b.to_double();
      g.set(0, n == 0 ? zeros_like(x) : dy * (pow(x, n - 1) * n));
    });
  return y;
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

const Tensor& Tensor::add_(const Tensor& other) const { return binary_in_place<kernels::Add>(*this, other); }
const Tensor& Tensor::sub_(const Tensor& other) const { return binary_in_place<kernels::Sub>(*this, other); }
const Tensor& Tensor::mul_(const Tensor& other) const { return binary_in_place<kernels::Mul>(*this, other); }
const Tensor& Tensor::div_(const Tensor& other) const { return binary_in_place<kernels::Div>(*this, other); }
const Tensor& Tensor::add_(const Scalar& other) const { return binary_in_place<kernels::Add>(*this, other); }
const Tensor& Tensor::sub_(const Scalar& other) const { return binary_in_place<kernels::Sub>(*this, other); }
const Tensor& Tensor::mul_(const Scalar& other) const { return binary_in_place<kernels::Mul>(*this, other); }
const Tensor& Tensor::div_(const Scalar& other) const { return binary_in_place<kernels::Div>(*this, other); }
const Tensor& Tensor::pow_(const Tensor& exponent) const {
  return binary_in_place<kernels::Pow>(*this, exponent);
}
const Tensor& Tensor::pow_(const Scalar& exponent) const {
  const DType power = checked_power(*this, exponent);
  const Op& op = row_op<kernels::Pow>;
  check_stores(op, *this, power);
  in_place(
      op, *this, {},
      [&] {
        if (device().is_meta())
          return defer_change(op.name, *this, {},
                              [exponent](const Tensor& t, const std::vector<Tensor>&) { t.pow_(exponent); });
        kernels::slot<kernels::PowScalar>(device(), power, {planned(*this, *this), {exponent}});
      },
      // The gradient needs the old elements.
      [&](const Tensor& old) { return tapestry::pow(tapestry::clone(old), exponent); });
  return *this;
}

}  // namespace tapestry
