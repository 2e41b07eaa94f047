// std, prod, nansum, nanmean and aminmax. The gradients of most are those of the operations that they are
// composed of; std and nansum record a node of their own.
#include "tapestry/autograd/internal/autocast.h"
#include "tapestry/autograd/internal/record_observer.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/internal/common.h"
#include "tapestry/autograd/ops/internal/reduced.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/autograd/ops/scan.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/autograd/tape.h"
#include "tapestry/kernels/ops/reduce.h"

namespace tapestry {
namespace {

using autograd::Backward;
using autograd::Grad;
using autograd::Op;
using autograd::Reduced;

const Op kStd("std", Grad::twice, kFloats);
const Op kProd("prod", Grad::twice, kAllDTypes);
const Op kNansum("nansum", Grad::twice, kAllDTypes);
const Op kNanmean("nanmean", Grad::twice, kFloats);
const Op kAminmax("aminmax", Grad::twice, kAllDTypes);

Tensor zero_like(const Tensor& x) { return zeros({}, TensorOptions(x.dtype(), x.device())); }

}  // namespace

// The gradient of sqrt() at 0 is infinite, and that of std is 0 as in PyTorch. So std records its own node.
Tensor std(const Tensor& x, const Dims& dims, bool unbiased, bool keepdim) {
  const Reduced checked(kStd, x, dims, keepdim);
  const Tensor variance = var(x, dims, unbiased, keepdim);
  Tensor y;
  {
    const NoGradGuard no_grad;
    y = sqrt(variance);
  }
  if (autograd::recording(variance))
    autograd::record(kStd, y, {&variance}, [y = autograd::save_output(y)](Backward& b) {
      const Tensor deviation = b.saved(y);
      const Tensor constant = eq(deviation, 0);
      const Tensor divisor = b.create_graph() ? where(constant, Scalar(1), deviation) : deviation;
      b.set(0, where(constant, zero_like(deviation), b.grad() / (divisor * 2)));
    });
  return y;
}
Tensor Tensor::std(const Dims& dims, bool unbiased, bool keepdim) const {
  return tapestry::std(*this, dims, unbiased, keepdim);
}

// The gradient needs the products of the elements before and after each element. So a product that is
// recorded is the last element of cumprod, which has that gradient.
Tensor prod(const Tensor& x, std::int64_t dim, bool keepdim) {
  if (const autograd::Autocast cast(kProd, x); cast) return prod(cast(x), dim, keepdim);
  const Reduced r(kProd, x, dim, keepdim);
  const DType dtype = is_floating(x.dtype()) ? autograd::accumulation_dtype(x.dtype()) : DType::i64;
  if (!autograd::recording(x) && (x.device().is_meta() || kernels::prod.has(x.device().type, dtype))) {
    const Tensor in = autograd::converted(x, dtype), y = empty(r.sizes, TensorOptions(dtype, x.device()));
    kernels::prod(x.device(), dtype, {in, r.mask, y});
    return is_floating(x.dtype()) ? autograd::converted(y, x.dtype()) : y;
  }
  if (x.dim() == 0) return cumprod(x, 0);
  // A row of no elements is replaced by a 1, which keeps the result connected to x.
  const bool empty_rows = x.size(dim) == 0;
  const TensorOptions options(x.dtype(), x.device());
  const Tensor products = cumprod(empty_rows ? cat({ones(r.kept, options), x}, dim) : x, dim);
  const std::int64_t last = products.size(dim) - 1;
  return keepdim ? products.narrow(dim, last, 1) : products.select(dim, last);
}
Tensor prod(const Tensor& x) {
  detail::check_defined(kProd.name, x);
  return prod(x.reshape({-1}), 0);
}
Tensor Tensor::prod() const { return tapestry::prod(*this); }
Tensor Tensor::prod(std::int64_t dim, bool keepdim) const { return tapestry::prod(*this, dim, keepdim); }

Tensor nansum(const Tensor& x, const Dims& dims, bool keepdim) {
  const Reduced r(kNansum, x, dims, keepdim);
  if (!is_floating(x.dtype())) return sum(x, dims, keepdim);
  const Tensor y = empty(r.sizes, TensorOptions(x.dtype(), x.device()));
  kernels::nansum(x.device(), x.dtype(), {x, r.mask, y});
  const autograd::CallNote note({.dims = r.mask});
  if (autograd::recording(x)) {
    autograd::record(kNansum, y, {&x}, [kept = r.kept, x = autograd::save(x)](Backward& b) {
      const Tensor saved = b.saved(x);
      b.set(0, where(isnan(saved), zero_like(saved), b.grad().reshape(kept).expand(saved.sizes())));
    });
  }
  return y;
}
Tensor Tensor::nansum(const Dims& dims, bool keepdim) const { return tapestry::nansum(*this, dims, keepdim); }

Tensor nanmean(const Tensor& x, const Dims& dims, bool keepdim) {
  const Reduced checked(kNanmean, x, dims, keepdim);
  const DType dtype = autograd::accumulation_dtype(x.dtype());  // a count may exceed the range of f16
  const Tensor total = nansum(x.to(dtype), dims, keepdim), counted = sum(eq(x, x), dims, keepdim);
  return (total / counted).to(x.dtype());
}
Tensor Tensor::nanmean(const Dims& dims, bool keepdim) const {
  return tapestry::nanmean(*this, dims, keepdim);
}

std::pair<Tensor, Tensor> aminmax(const Tensor& x, std::optional<std::int64_t> dim, bool keepdim) {
  const Dims dims = dim ? Dims(*dim) : Dims();
  const Reduced checked(kAminmax, x, dims, keepdim);
  return {amin(x, dims, keepdim), amax(x, dims, keepdim)};
}
std::pair<Tensor, Tensor> Tensor::aminmax(std::optional<std::int64_t> dim, bool keepdim) const {
  return tapestry::aminmax(*this, dim, keepdim);
}

}  // namespace tapestry
