// any, all and count_nonzero: reductions of which elements differ from 0. They have no gradients.
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/internal/common.h"
#include "tapestry/autograd/ops/internal/reduced.h"
#include "tapestry/autograd/ops/reduce.h"

namespace tapestry {
namespace {

using autograd::Grad;
using autograd::Op;
using autograd::Reduced;

const Op kAny("any", Grad::none, kAllDTypes);
const Op kAll("all", Grad::none, kAllDTypes);
const Op kCountNonzero("count_nonzero", Grad::none, kAllDTypes);

// True where x differs from 0.
Tensor truth(const Tensor& x) { return x.dtype() == DType::boolean ? x : ne(x, 0); }

// Returns whether any element is true, or whether all are.
Tensor decided(const Op& op, const Tensor& x, const Dims& dims, bool keepdim, bool any) {
  const Reduced r(op, x, dims, keepdim);
  const NoGradGuard no_grad;
  const DType dtype = x.dtype() == DType::u8 ? DType::u8 : DType::boolean;
  if (r.count == 0 || r.sizes.numel() == 0) return full(r.sizes, !any, TensorOptions(dtype, x.device()));
  const Tensor true_or_not = truth(x);
  return (any ? amax(true_or_not, dims, keepdim) : amin(true_or_not, dims, keepdim)).to(dtype);
}

}  // namespace

Tensor any(const Tensor& x, const Dims& dims, bool keepdim) { return decided(kAny, x, dims, keepdim, true); }
Tensor all(const Tensor& x, const Dims& dims, bool keepdim) { return decided(kAll, x, dims, keepdim, false); }
Tensor Tensor::any(const Dims& dims, bool keepdim) const { return tapestry::any(*this, dims, keepdim); }
Tensor Tensor::all(const Dims& dims, bool keepdim) const { return tapestry::all(*this, dims, keepdim); }

Tensor count_nonzero(const Tensor& x, const Dims& dims) {
  const Reduced checked(kCountNonzero, x, dims, false);
  return sum(truth(x.detach()), dims);
}
Tensor Tensor::count_nonzero(const Dims& dims) const { return tapestry::count_nonzero(*this, dims); }

}  // namespace tapestry
