// The public comparisons and choices.
#include "tapestry/autograd/ops/compare.h"

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/internal/common.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/kernels/ops/compare.h"

namespace tapestry {

using namespace autograd;  // NOLINT: this file is autograd's
using BinarySlot = kernels::Slot<kernels::Elementwise<3>>;
using ScalarSlot = kernels::Slot<kernels::ScalarArgs>;

namespace {

const Op kEq{"eq", Grad::none, kAllDTypes};
const Op kNe{"ne", Grad::none, kAllDTypes};
const Op kLt{"lt", Grad::none, kAllDTypes};
const Op kLe{"le", Grad::none, kAllDTypes};
const Op kGt{"gt", Grad::none, kAllDTypes};
const Op kGe{"ge", Grad::none, kAllDTypes};
const Op kIsNan{"isnan", Grad::none, kAllDTypes};
const Op kAllClose{"allclose", Grad::none, kAllDTypes};
const Op kEqual{"equal", Grad::none, kAllDTypes};
const Op kWhere{"where", Grad::differentiable, kAllDTypes};

// The bool tensor y that run(y, a, b, dtype) writes, where a and b have been converted to their common dtype.
template <class Run>
Tensor compared(const Op& op, const Tensor& a, const Tensor& b, Run run) {
  check_operands(op, a, b);
  const DType dtype = promoted(a, b);
  const Tensor x = converted(a, dtype), z = converted(b, dtype);
  Tensor y = result_like(broadcast_shapes(op.name, a.sizes(), b.sizes()), DType::boolean, {&x, &z});
  run(y, x, z, dtype);
  return y;
}
Tensor compare(const Op& op, const BinarySlot& slot, const Tensor& a, const Tensor& b) {
  return compared(op, a, b, [&](const Tensor& y, const Tensor& x, const Tensor& z, DType dtype) {
    slot(y.device(), dtype, planned(y, x, z));
  });
}
Tensor compare(const Op& op, const ScalarSlot& slot, const Tensor& a, const Scalar& b) {
  tapestry::detail::check_defined(op.name, a);
  // The kernel compares integers as i64, so the number need not fit the tensor's dtype.
  const DType dtype = b.is_real() && !is_floating(a.dtype()) ? DType::f32 : a.dtype();
  const Tensor x = converted(a, dtype);
  Tensor y = result_like(a.sizes(), DType::boolean, {&x});
  slot(y.device(), dtype, {planned(y, x), b});
  return y;
}

bool all(const Tensor& t) { return sum(t).item<std::int64_t>() == t.numel(); }

}  // namespace

Tensor eq(const Tensor& a, const Tensor& b) { return compare(kEq, kernels::eq, a, b); }
Tensor ne(const Tensor& a, const Tensor& b) { return compare(kNe, kernels::ne, a, b); }
Tensor lt(const Tensor& a, const Tensor& b) { return compare(kLt, kernels::lt, a, b); }
Tensor le(const Tensor& a, const Tensor& b) { return compare(kLe, kernels::le, a, b); }
Tensor gt(const Tensor& a, const Tensor& b) { return compare(kGt, kernels::lt, b, a); }
Tensor ge(const Tensor& a, const Tensor& b) { return compare(kGe, kernels::le, b, a); }
Tensor eq(const Tensor& a, const Scalar& b) { return compare(kEq, kernels::eq_scalar, a, b); }
Tensor ne(const Tensor& a, const Scalar& b) { return compare(kNe, kernels::ne_scalar, a, b); }
Tensor lt(const Tensor& a, const Scalar& b) { return compare(kLt, kernels::lt_scalar, a, b); }
Tensor le(const Tensor& a, const Scalar& b) { return compare(kLe, kernels::le_scalar, a, b); }
Tensor gt(const Tensor& a, const Scalar& b) { return compare(kGt, kernels::gt_scalar, a, b); }
Tensor ge(const Tensor& a, const Scalar& b) { return compare(kGe, kernels::ge_scalar, a, b); }

Tensor isnan(const Tensor& x) {
  tapestry::detail::check_defined(kIsNan.name, x);
  if (!is_floating(x.dtype())) return zeros_like(x, DType::boolean);
  Tensor y = result_like(x.sizes(), DType::boolean, {&x});
  kernels::isnan(y.device(), x.dtype(), planned(y, x));
  return y;
}

bool allclose(const Tensor& a, const Tensor& b, double rtol, double atol, bool equal_nan) {
  check(rtol >= 0 && atol >= 0, "[allclose] rtol ", rtol, " and atol ", atol, " must not be negative");
  return all(compared(kAllClose, a, b, [&](const Tensor& y, const Tensor& x, const Tensor& z, DType dtype) {
    kernels::isclose(y.device(), dtype, {planned(y, x, z), rtol, atol, equal_nan});
  }));
}

bool equal(const Tensor& a, const Tensor& b) {
  check_operands(kEqual, a, b);
  return a.sizes() == b.sizes() && a.dtype() == b.dtype() && all(compare(kEqual, kernels::eq, a, b));
}

Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  check_operands(kWhere, a, b);
  check_operands(kWhere, condition, a);
  check<TypeError>(condition.dtype() == DType::boolean, "[where] the condition is ", condition.dtype(),
                   "; give a bool tensor, as comparisons do");
  const DType dtype = promoted(a, b);
  const Tensor x = converted(a, dtype), z = converted(b, dtype);
  const Shape sizes =
      broadcast_shapes(kWhere.name, condition.sizes(), broadcast_shapes(kWhere.name, a.sizes(), b.sizes()));
  Tensor y = result_like(sizes, dtype, {&x, &z, &condition});
  kernels::where(y.device(), dtype, planned(y, condition, x, z));
  if (recording(a, b))
    record_binary(kWhere, y, a, b, [condition = save(condition)](Backward& g, std::uint32_t i) {
      const Tensor chosen = g.saved(condition);
      Tensor dx = result_like(g.grad().sizes(), g.grad().dtype(), {&g.grad()});
      kernels::masked(dx.device(), dx.dtype(), {planned(dx, chosen, g.grad()), i == 0});
      return dx;
    });
  return y;
}

Tensor Tensor::eq(const Tensor& other) const { return tapestry::eq(*this, other); }
Tensor Tensor::eq(const Scalar& other) const { return tapestry::eq(*this, other); }
Tensor Tensor::ne(const Tensor& other) const { return tapestry::ne(*this, other); }
Tensor Tensor::ne(const Scalar& other) const { return tapestry::ne(*this, other); }
Tensor Tensor::lt(const Tensor& other) const { return tapestry::lt(*this, other); }
Tensor Tensor::lt(const Scalar& other) const { return tapestry::lt(*this, other); }
Tensor Tensor::le(const Tensor& other) const { return tapestry::le(*this, other); }
Tensor Tensor::le(const Scalar& other) const { return tapestry::le(*this, other); }
Tensor Tensor::gt(const Tensor& other) const { return tapestry::gt(*this, other); }
Tensor Tensor::gt(const Scalar& other) const { return tapestry::gt(*this, other); }
Tensor Tensor::ge(const Tensor& other) const { return tapestry::ge(*this, other); }
Tensor Tensor::ge(const Scalar& other) const { return tapestry::ge(*this, other); }
bool Tensor::allclose(const Tensor& other, double rtol, double atol, bool equal_nan) const {
  return tapestry::allclose(*this, other, rtol, atol, equal_nan);
}

}  // namespace tapestry
