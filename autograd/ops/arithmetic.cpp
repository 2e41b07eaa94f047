// Arithmetic with tensors and numbers, out of place and in place. kernels/ops/arithmetic.h has the formulas
// and the gradients.
#include "tapestry/autograd/ops/arithmetic.h"

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
  const DType dtype = checked_power(a, b);
  Tensor y = run_with_number(kernels::slot<kernels::PowScalar>, a, b, dtype, dtype);
  if (recording(a))
    record(row_op<kernels::Pow>, y, {&a}, [a = save(a), b](Backward& g) {
      g.set(0, apply_with(kernels::slot<kernels::PowScalarBackward>, std::tuple(b), g.grad(), g.saved(a)));
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
        kernels::slot<kernels::PowScalar>(device(), power, {planned(*this, *this), {exponent}});
      },
      // The gradient needs the old elements.
      [&](const Tensor& old) { return tapestry::pow(tapestry::clone(old), exponent); });
  return *this;
}

}  // namespace tapestry
