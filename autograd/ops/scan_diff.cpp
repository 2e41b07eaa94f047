// diff and trapezoid: differences of neighbours, and sums of their means. Both are made of other operations.
#include <algorithm>

#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/internal/common.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/autograd/ops/scan.h"
#include "tapestry/autograd/ops/view.h"

namespace tapestry {
namespace {

using autograd::check_operands;
using autograd::Grad;
using autograd::Op;

const Op kDiff("diff", Grad::twice, kAllDTypes);
const Op kTrapezoid("trapezoid", Grad::twice, kNumbers);

int checked_dim(const Op& op, const Tensor& x, std::int64_t dim) {
  detail::check_defined(op.name, x);
  op.check_dtype(x.dtype());
  check(x.dim() > 0, "[", op.name, "] a 0-d tensor has no neighbours; give at least one dimension");
  return wrap_dim(op.name, dim, x.dim());
}
// The elements of `dim` but the first or the last.
Tensor without_first(const Tensor& x, int dim) {
  return narrow(x, dim, std::min<std::int64_t>(1, x.size(dim)), std::max<std::int64_t>(x.size(dim) - 1, 0));
}
Tensor without_last(const Tensor& x, int dim) {
  return narrow(x, dim, 0, std::max<std::int64_t>(x.size(dim) - 1, 0));
}
// The sum of the means of neighbours, which `widths` multiplies if it is defined.
Tensor area(const Tensor& y, const Tensor& widths, int dim) {
  const Tensor sums = without_first(y, dim) + without_last(y, dim);
  return sum(widths.defined() ? sums * widths : sums, dim) / 2;
}

}  // namespace

Tensor diff(const Tensor& x, std::int64_t n, std::int64_t dim, const Tensor& prepend, const Tensor& append) {
  const int d = checked_dim(kDiff, x, dim);
  check(n >= 0, "[diff] n is ", n, "; give 0 or more");
  std::vector<Tensor> parts;
  for (const Tensor* part : {&prepend, &x, &append})
    if (part->defined()) {
      check_operands(kDiff, x, *part);
      kDiff.check_dtype(part->dtype());
      parts.push_back(*part);
    }
  if (n == 0) return x;
  Tensor y = parts.size() == 1 ? x : cat(parts, d);
  const std::int64_t times = std::min(n, y.size(d));  // after that many, no elements are left
  for (std::int64_t i = 0; i < times; ++i) {
    const Tensor later = without_first(y, d), earlier = without_last(y, d);
    y = y.dtype() == DType::boolean ? logical_xor(later, earlier) : later - earlier;
  }
  return y;
}
Tensor Tensor::diff(std::int64_t n, std::int64_t dim, const Tensor& prepend, const Tensor& append) const {
  return tapestry::diff(*this, n, dim, prepend, append);
}

Tensor trapezoid(const Tensor& y, const Tensor& x, std::int64_t dim) {
  const int d = checked_dim(kTrapezoid, y, dim);
  check_operands(kTrapezoid, y, x);
  kTrapezoid.check_dtype(x.dtype());
  Tensor points = x;
  if (x.dim() == 1) {
    check(x.size(0) == y.size(d), "[trapezoid] ", x.size(0), " points x for ", y.size(d),
          " values y along dimension ", d, "; give one point per value");
    Shape sizes = Shape::filled(y.dim(), 1);
    sizes[d] = x.size(0);
    points = reshape(x, sizes);
  }
  check(points.dim() > 0,
        "[trapezoid] the points x are a 0-d tensor; give one point per value, or the number dx");
  const int dx = points.dim() - y.dim() + d;
  check(dx >= 0 && dx < points.dim(), "[trapezoid] points of shape ", x.sizes(), " for values of shape ",
        y.sizes(), " along dimension ", dim, "; the points broadcast to the values");
  return area(y, without_first(points, dx) - without_last(points, dx), d);
}
Tensor trapezoid(const Tensor& y, double dx, std::int64_t dim) {
  const int d = checked_dim(kTrapezoid, y, dim);
  const Tensor whole = area(y, {}, d);
  return dx == 1 ? whole : whole * dx;
}

}  // namespace tapestry
