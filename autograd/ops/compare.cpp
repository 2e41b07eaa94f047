// The public comparisons and choices.
#include "tapestry/autograd/ops/compare.h"

#include "tapestry/autograd/internal/record_observer.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/internal/binary.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/core/internal/capture_state.h"
#include "tapestry/kernels/ops/compare.h"

namespace tapestry {

using namespace autograd;  // NOLINT: this file is autograd's

namespace {

const Op kIsNan{"isnan", Grad::none, kAllDTypes};
const Op kIsClose{"isclose", Grad::none, kAllDTypes};
const Op kAllClose{"allclose", Grad::none, kAllDTypes};
const Op kEqual{"equal", Grad::none, kAllDTypes};
const Op kWhere{"where", Grad::twice, kAllDTypes};

bool every(const Tensor& t) { return t.numel() == 0 || sum(t).item<std::int64_t>() == t.numel(); }

}  // namespace

Tensor eq(const Tensor& a, const Tensor& b) { return binary<kernels::Eq>(a, b); }
Tensor ne(const Tensor& a, const Tensor& b) { return binary<kernels::Ne>(a, b); }
Tensor lt(const Tensor& a, const Tensor& b) { return binary<kernels::Lt>(a, b); }
Tensor le(const Tensor& a, const Tensor& b) { return binary<kernels::Le>(a, b); }
Tensor gt(const Tensor& a, const Tensor& b) { return binary<kernels::Gt>(a, b); }
Tensor ge(const Tensor& a, const Tensor& b) { return binary<kernels::Ge>(a, b); }
Tensor eq(const Tensor& a, const Scalar& b) { return binary_with<kernels::Eq, 1>(a, b); }
Tensor ne(const Tensor& a, const Scalar& b) { return binary_with<kernels::Ne, 1>(a, b); }
Tensor lt(const Tensor& a, const Scalar& b) { return binary_with<kernels::Lt, 1>(a, b); }
Tensor le(const Tensor& a, const Scalar& b) { return binary_with<kernels::Le, 1>(a, b); }
Tensor gt(const Tensor& a, const Scalar& b) { return binary_with<kernels::Gt, 1>(a, b); }
Tensor ge(const Tensor& a, const Scalar& b) { return binary_with<kernels::Ge, 1>(a, b); }

Tensor isnan(const Tensor& x) {
  tapestry::detail::check_defined(kIsNan.name, x);
  if (!is_floating(x.dtype())) return zeros_like(x, DType::boolean);
  Tensor y = result_like(x.sizes(), DType::boolean, {&x});
  kernels::slot<kernels::IsNan>(y.device(), x.dtype(), planned(y, x));
  return y;
}

namespace {

// Whether each element is close. The operands have been checked.
Tensor close(const Op& op, const Tensor& a, const Tensor& b, double rtol, double atol, bool equal_nan) {
  check(rtol >= 0 && atol >= 0, "[", op.name, "] rtol ", rtol, " and atol ", atol, " must not be negative");
  const DType dtype = promoted(a, b);
  const Tensor x = converted(a, dtype), z = converted(b, dtype);
  Tensor y = result_like(broadcast_shapes(op.name, a.sizes(), b.sizes()), DType::boolean, {&x, &z});
  kernels::isclose(y.device(), dtype, {planned(y, x, z), rtol, atol, equal_nan});
  return y;
}

}  // namespace

Tensor isclose(const Tensor& a, const Tensor& b, double rtol, double atol, bool equal_nan) {
  check_operands(kIsClose, a, b);
  Tensor y = close(kIsClose, a, b, rtol, atol, equal_nan);
  if (y.device().is_meta())
    defer_values(kIsClose.name, y, {a, b}, [=](const Tensor& t, const std::vector<Tensor>& v) {
      t.copy_(tapestry::isclose(v[0], v[1], rtol, atol, equal_nan));
    });
  return y;
}
bool allclose(const Tensor& a, const Tensor& b, double rtol, double atol, bool equal_nan) {
  check_operands(kAllClose, a, b);
  tapestry::detail::check_host_reads(kAllClose.name, a);
  return every(close(kAllClose, a, b, rtol, atol, equal_nan));
}

bool equal(const Tensor& a, const Tensor& b) {
  check_operands(kEqual, a, b);
  tapestry::detail::check_host_reads(kEqual.name, a);
  return a.sizes() == b.sizes() && a.dtype() == b.dtype() && every(binary<kernels::Eq>(a, b, kEqual));
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
  if (y.device().is_meta())
    defer_values(kWhere.name, y, {condition, a, b}, [](const Tensor& t, const std::vector<Tensor>& v) {
      t.copy_(tapestry::where(v[0], v[1], v[2]));
    });
  const CallNote note({.constants = {&condition}});
  if (recording(a, b))
    record_binary(kWhere, y, a, b, [condition = save(condition)](Backward& g, std::uint32_t i) {
      const Tensor chosen = g.saved(condition);
      if (g.create_graph()) {
        const Tensor none = zeros({}, {g.grad().dtype(), g.grad().device()});
        return i == 0 ? where(chosen, g.grad(), none) : where(chosen, none, g.grad());
      }
      Tensor dx = result_like(g.grad().sizes(), g.grad().dtype(), {&g.grad()});
      kernels::masked(dx.device(), dx.dtype(), {planned(dx, chosen, g.grad()), i == 0});
      return dx;
    });
  return y;
}

Tensor where(const Tensor& condition, const Tensor& a, const Scalar& b) {
  tapestry::detail::check_defined(kWhere.name, a, "the first operand");
  return where(condition, a, number_like(b, a));
}
Tensor where(const Tensor& condition, const Scalar& a, const Tensor& b) {
  tapestry::detail::check_defined(kWhere.name, b, "the second operand");
  return where(condition, number_like(a, b), b);
}
Tensor where(const Tensor& condition, const Scalar& a, const Scalar& b) {
  tapestry::detail::check_defined(kWhere.name, condition, "the condition");
  return where(condition, scalar_tensor(a, condition.device()), scalar_tensor(b, condition.device()));
}
Tensor Tensor::where(const Tensor& condition, const Tensor& other) const {
  return tapestry::where(condition, *this, other);
}
Tensor Tensor::where(const Tensor& condition, const Scalar& other) const {
  return tapestry::where(condition, *this, other);
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
bool Tensor::equal(const Tensor& other) const { return tapestry::equal(*this, other); }
bool Tensor::allclose(const Tensor& other, double rtol, double atol, bool equal_nan) const {
  return tapestry::allclose(*this, other, rtol, atol, equal_nan);
}
Tensor Tensor::isclose(const Tensor& other, double rtol, double atol, bool equal_nan) const {
  return tapestry::isclose(*this, other, rtol, atol, equal_nan);
}

}  // namespace tapestry
