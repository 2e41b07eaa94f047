// Products that are made of matmul() and mul(). autograd/ops/product_einsum.cpp has einsum and tensordot.
#include "tapestry/autograd/ops/product.h"

#include <algorithm>

#include "tapestry/autograd/internal/autocast.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/internal/common.h"
#include "tapestry/autograd/ops/matmul.h"
#include "tapestry/autograd/ops/rearrange.h"
#include "tapestry/autograd/ops/view.h"

namespace tapestry {
namespace {

using autograd::check_operands;
using autograd::Grad;
using autograd::Op;

const Op kMm("mm", Grad::twice, kFloats);
const Op kBmm("bmm", Grad::twice, kFloats);
const Op kMv("mv", Grad::twice, kFloats);
const Op kDot("dot", Grad::twice, kFloats);
const Op kOuter("outer", Grad::twice, kAllDTypes);
const Op kAddmm("addmm", Grad::twice, kFloats);
const Op kBaddbmm("baddbmm", Grad::twice, kFloats);
const Op kKron("kron", Grad::twice, kAllDTypes);
const Op kCross("cross", Grad::twice, kNumbers);

// The product of tensors with `dims_a` and `dims_b` dimensions. matmul() checks the sizes.
Tensor product(const Op& op, const Tensor& a, const Tensor& b, int dims_a, int dims_b) {
  check_operands(op, a, b);
  check(a.dim() == dims_a && b.dim() == dims_b, "[", op.name, "] shapes ", a.sizes(), " and ", b.sizes(),
        "; expected ", dims_a, "-d and ", dims_b, "-d tensors");
  // Under autocast, the operation itself has cast its operands, or takes them as they are (mv and dot on
  // CPUs).
  const AutocastGuard off(false);
  return matmul(a, b);
}

Tensor sum_of(const Op& op, const Tensor& x, const Tensor& product, const Scalar& beta, const Scalar& alpha) {
  detail::check_defined(op.name, x);
  autograd::check_matches(op.name, product, x, "the tensor to add");
  check(broadcast_shapes(op.name, x.sizes(), product.sizes()) == product.sizes(), "[", op.name,
        "] a tensor of shape ", x.sizes(), " does not broadcast to the product's shape ", product.sizes());
  const auto is = [](const Scalar& s, double value) { return s.to_double() == value; };
  const Tensor scaled = is(alpha, 1) ? product : mul(product, alpha);
  if (is(beta, 0)) return scaled;
  return add(is(beta, 1) ? x : mul(x, beta), scaled);
}

}  // namespace

Tensor mm(const Tensor& a, const Tensor& b) {
  if (const autograd::Autocast cast(kMm, a, b); cast) return mm(cast(a), cast(b));
  return product(kMm, a, b, 2, 2);
}
Tensor mv(const Tensor& matrix, const Tensor& vector) {
  if (const autograd::Autocast cast(kMv, matrix, vector); cast) return mv(cast(matrix), cast(vector));
  return product(kMv, matrix, vector, 2, 1);
}
Tensor dot(const Tensor& a, const Tensor& b) {
  if (const autograd::Autocast cast(kDot, a, b); cast) return dot(cast(a), cast(b));
  return product(kDot, a, b, 1, 1);
}
Tensor bmm(const Tensor& a, const Tensor& b) {
  if (const autograd::Autocast cast(kBmm, a, b); cast) return bmm(cast(a), cast(b));
  check_operands(kBmm, a, b);
  check(a.dim() != 3 || b.dim() != 3 || a.sizes()[0] == b.sizes()[0], "[bmm] batches of shapes ", a.sizes(),
        " and ", b.sizes(), " differ in size; matmul() broadcasts them");
  return product(kBmm, a, b, 3, 3);
}

Tensor outer(const Tensor& a, const Tensor& b) {
  check_operands(kOuter, a, b);
  check(a.dim() == 1 && b.dim() == 1, "[outer] shapes ", a.sizes(), " and ", b.sizes(),
        "; expected two vectors");
  return mul(unsqueeze(a, 1), b);
}

Tensor addmm(const Tensor& x, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha) {
  if (const autograd::Autocast cast(kAddmm, x, a, b); cast)
    return addmm(cast(x), cast(a), cast(b), beta, alpha);
  return sum_of(kAddmm, x, product(kAddmm, a, b, 2, 2), beta, alpha);
}
Tensor baddbmm(const Tensor& x, const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha) {
  if (const autograd::Autocast cast(kBaddbmm, x, a, b); cast)
    return baddbmm(cast(x), cast(a), cast(b), beta, alpha);
  check_operands(kBaddbmm, a, b);
  check(a.dim() != 3 || b.dim() != 3 || a.sizes()[0] == b.sizes()[0], "[baddbmm] batches of shapes ",
        a.sizes(), " and ", b.sizes(), " differ in size; they must be equal");
  return sum_of(kBaddbmm, x, product(kBaddbmm, a, b, 3, 3), beta, alpha);
}

Tensor kron(const Tensor& a, const Tensor& b) {
  check_operands(kKron, a, b);
  // Dimension i of a and of b become the neighbouring dimensions (size in a, 1) and (1, size in b) of the
  // product, which are then merged. If one of the sizes is 1, one dimension is enough.
  const int n = std::max(a.dim(), b.dim());
  const auto size = [n](const Tensor& t, int i) {
    const int own = i - (n - t.dim());
    return own < 0 ? 1 : t.sizes()[own];
  };
  std::vector<std::int64_t> left, right;
  Shape to;
  for (int i = 0; i < n; ++i) {
    const std::int64_t p = size(a, i), q = size(b, i);
    std::int64_t both = 0;
    check(!__builtin_mul_overflow(p, q, &both), "[kron] dimension ", i, " of shapes ", a.sizes(), " and ",
          b.sizes(), " gives a size that 64 bits cannot count");
    to.push_back(both);
    if (p != 1 && q != 1) {
      left.insert(left.end(), {p, 1});
      right.insert(right.end(), {1, q});
    } else {
      left.push_back(p);
      right.push_back(q);
    }
  }
  check(left.size() <= kMaxDims, "[kron] shapes ", a.sizes(), " and ", b.sizes(),
        " have more than 4 dimensions with several entries in both; merge some of them");
  return reshape(mul(reshape(a, left), reshape(b, right)), to);
}

Tensor cross(const Tensor& a, const Tensor& b, std::optional<std::int64_t> dim) {
  if (const autograd::Autocast cast(kCross, a, b); cast) return cross(cast(a), cast(b), dim);
  check_operands(kCross, a, b);
  kCross.check_dtype(a.dtype());
  kCross.check_dtype(b.dtype());
  check(a.dim() == b.dim() && a.dim() > 0, "[cross] shapes ", a.sizes(), " and ", b.sizes(),
        "; expected tensors with as many dimensions, at least one");
  int d = 0;
  if (dim) {
    d = wrap_dim("cross", *dim, a.dim());
  } else {
    while (d < a.dim() - 1 && a.sizes()[d] != 3) ++d;
  }
  check(a.sizes()[d] == 3 && b.sizes()[d] == 3, "[cross] shapes ", a.sizes(), " and ", b.sizes(),
        " along dimension ", d, "; a cross product needs size 3");
  const std::vector<Tensor> x = unbind(a, d), y = unbind(b, d);
  const auto component = [&](std::size_t i, std::size_t j) { return sub(mul(x[i], y[j]), mul(x[j], y[i])); };
  return stack({component(1, 2), component(2, 0), component(0, 1)}, d);
}

Tensor Tensor::mm(const Tensor& other) const { return tapestry::mm(*this, other); }
Tensor Tensor::bmm(const Tensor& other) const { return tapestry::bmm(*this, other); }
Tensor Tensor::mv(const Tensor& vector) const { return tapestry::mv(*this, vector); }
Tensor Tensor::dot(const Tensor& other) const { return tapestry::dot(*this, other); }
Tensor Tensor::outer(const Tensor& other) const { return tapestry::outer(*this, other); }
Tensor Tensor::addmm(const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha) const {
  return tapestry::addmm(*this, a, b, beta, alpha);
}
Tensor Tensor::baddbmm(const Tensor& a, const Tensor& b, const Scalar& beta, const Scalar& alpha) const {
  return tapestry::baddbmm(*this, a, b, beta, alpha);
}
Tensor Tensor::kron(const Tensor& other) const { return tapestry::kron(*this, other); }
Tensor Tensor::cross(const Tensor& other, std::optional<std::int64_t> dim) const {
  return tapestry::cross(*this, other, dim);
}

const Tensor& Tensor::addmm_(const Tensor& a, const Tensor& b, const Scalar& beta,
                             const Scalar& alpha) const {
  return autograd::compute_in_place(kAddmm, *this, {&a, &b},
                                    [&](const Tensor& x) { return tapestry::addmm(x, a, b, beta, alpha); });
}
const Tensor& Tensor::baddbmm_(const Tensor& a, const Tensor& b, const Scalar& beta,
                               const Scalar& alpha) const {
  return autograd::compute_in_place(kBaddbmm, *this, {&a, &b},
                                    [&](const Tensor& x) { return tapestry::baddbmm(x, a, b, beta, alpha); });
}

}  // namespace tapestry
