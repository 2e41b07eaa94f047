#include <cmath>

#include "tapestry/autograd/internal/autocast.h"
#include "tapestry/autograd/internal/record_observer.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/internal/common.h"
#include "tapestry/autograd/ops/internal/reduced.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/autograd/tape.h"
#include "tapestry/kernels/ops/reduce.h"

namespace tapestry {
namespace {

using autograd::Backward;
using autograd::Op;
using autograd::Reduced;
using autograd::save;
using autograd::save_output;

const Op kNorm("norm", autograd::Grad::twice, kFloats);

// The gradient of a norm by operations. As in the kernel, an element of 0 gets none if the norm is 0, or if
// the power of 0 is infinite.
Tensor norm_gradient(const Tensor& g, const Tensor& x, const Tensor& y, double p) {
  const Tensor none = zeros({}, {x.dtype(), x.device()});
  if (p == 0) return zeros_like(x);
  if (p == 1) return g * sign(x);
  if (std::isinf(p)) return where(autograd::is_best(abs(x), y), g * sign(x), none);
  // A 1 stands for the elements that have no gradient, so that the formula stays finite.
  const Tensor no_norm = eq(y, 0), norm = where(no_norm, Scalar(1), y);
  if (p == 2) return where(no_norm, none, g * (x / norm));
  const Tensor unused = p < 2 ? logical_or(no_norm, eq(x, 0)) : logical_or(no_norm, zeros_like(x));
  const Tensor base = where(unused, Scalar(1), abs(x));
  return where(unused, none, g * sign(x) * pow(base / norm, p - 1));
}

}  // namespace

Tensor norm(const Tensor& x, double p, const Dims& dims, bool keepdim) {
  if (const autograd::Autocast cast(kNorm, x); cast) return norm(cast(x), p, dims, keepdim);
  const Reduced r(kNorm, x, dims, keepdim);
  check(!std::isnan(p), "[norm] p is not a number; use 0, 1, 2, any other real number or an infinity");
  check(r.count > 0 || (p >= 0 && !std::isinf(p)), "[norm] the norm of order ", p, " of no elements (shape ",
        x.sizes(), ") is not defined; reduce dimensions that are not empty");
  const Tensor y = empty(r.sizes, TensorOptions(x.dtype(), x.device()));
  kernels::norm(x.device(), x.dtype(), {.reduction = {x, r.mask, y}, .p = p});
  const autograd::CallNote note({.dims = r.mask});
  if (autograd::recording(x)) {
    autograd::record(kNorm, y, {&x}, [p, r, x = save(x), y = save_output(y)](Backward& b) {
      const Tensor saved = b.saved(x), result = b.saved(y).reshape(r.kept);
      Tensor g = b.grad().reshape(r.kept);
      if (std::isinf(p)) g = autograd::divided_among(g, autograd::is_best(abs(saved), result), r);
      if (b.create_graph()) return b.set(0, norm_gradient(g, saved, result, p));
      const Tensor dx = empty_like(saved);
      kernels::norm_backward(saved.device(), saved.dtype(),
                             {.operands = autograd::planned(dx, saved, result, g), .p = p});
      b.set(0, dx);
    });
  }
  return y;
}
Tensor Tensor::norm(double p, const Dims& dims, bool keepdim) const {
  return tapestry::norm(*this, p, dims, keepdim);
}

}  // namespace tapestry
