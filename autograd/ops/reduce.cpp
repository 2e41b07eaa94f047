// Sums, means, variances and logsumexp. autograd/ops/reduce_max.cpp has the reductions that pick an
// element.
#include "tapestry/autograd/ops/reduce.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tapestry/autograd/internal/autocast.h"
#include "tapestry/autograd/internal/record_observer.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/internal/common.h"
#include "tapestry/autograd/ops/internal/reduced.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/autograd/tape.h"
#include "tapestry/kernels/ops/reduce.h"

namespace tapestry {
namespace {

using autograd::accumulation_dtype;
using autograd::Backward;
using autograd::Grad;
using autograd::Op;
using autograd::Reduced;
using autograd::save;
using autograd::save_output;
using autograd::SavedTensor;

const Op kSum("sum", Grad::twice, kAllDTypes);
const Op kMean("mean", Grad::twice, kFloats);
const Op kVar("var", Grad::twice, kFloats);
const Op kLogsumexp("logsumexp", Grad::twice, kFloats);

Tensor sum_into(const Tensor& x, const Reduced& r, const Shape& sizes, DType dtype, double divisor) {
  const Tensor y = empty(sizes, TensorOptions(dtype, x.device()));
  kernels::sum(x.device(), x.dtype(), {.reduction = {x, r.mask, y}, .divisor = divisor});
  return y;
}

}  // namespace

Reduced::Reduced(const Op& op, const Tensor& x, const Dims& dims, bool keepdim) {
  tapestry::detail::check_defined(op.name, x);
  op.check_dtype(x.dtype());
  const unsigned all = (1u << x.dim()) - 1;
  for (const std::int64_t dim : dims) {
    const int d = wrap_dim(op.name, dim, x.dim());
    check((mask >> d & 1) == 0, "[", op.name, "] dimension ", d, " appears twice in ", dims,
          "; name each dimension once");
    mask |= 1u << d;
  }
  mask = dims.empty() ? all : mask & all;  // a 0-d tensor accepts dimension 0, but has no size to reduce
  for (int i = 0; i < x.dim(); ++i) {
    const bool gone = mask >> i & 1;
    if (gone) count *= x.sizes()[i];
    if (!gone || keepdim) sizes.push_back(gone ? 1 : x.sizes()[i]);
    kept.push_back(gone ? 1 : x.sizes()[i]);
  }
}

Dims Reduced::dims() const {
  Dims dims;
  for (int i = 0; i < kept.size(); ++i)
    if (mask >> i & 1) dims.push_back(i);
  return dims;
}

Tensor sum(const Tensor& x, const Dims& dims, bool keepdim) {
  if (const autograd::Autocast cast(kSum, x); cast) return sum(cast(x), dims, keepdim);
  const Reduced r(kSum, x, dims, keepdim);
  const Tensor y = sum_into(x, r, r.sizes, is_floating(x.dtype()) ? x.dtype() : DType::i64, 1);
  const autograd::CallNote note({.dims = r.mask});
  if (autograd::recording(x)) {
    autograd::record(kSum, y, {&x}, [kept = r.kept, from = x.sizes()](Backward& b) {
      b.set(0, b.grad().reshape(kept).expand(from));
    });
  }
  return y;
}
Tensor Tensor::sum(const Dims& dims, bool keepdim) const { return tapestry::sum(*this, dims, keepdim); }

Tensor mean(const Tensor& x, const Dims& dims, bool keepdim) {
  const Reduced r(kMean, x, dims, keepdim);
  const double count = static_cast<double>(r.count);
  const Tensor y = sum_into(x, r, r.sizes, x.dtype(), count);
  const autograd::CallNote note({.dims = r.mask});
  if (autograd::recording(x)) {
    autograd::record(kMean, y, {&x}, [kept = r.kept, from = x.sizes(), count](Backward& b) {
      b.set(0, div(b.grad(), Scalar(count)).reshape(kept).expand(from));
    });
  }
  return y;
}
Tensor Tensor::mean(const Dims& dims, bool keepdim) const { return tapestry::mean(*this, dims, keepdim); }

Tensor var(const Tensor& x, const Dims& dims, bool unbiased, bool keepdim) {
  const Reduced r(kVar, x, dims, keepdim);
  const double divisor = static_cast<double>(std::max<std::int64_t>(r.count - unbiased, 0));
  const Tensor center = sum_into(x, r, r.kept, accumulation_dtype(x.dtype()), static_cast<double>(r.count));
  const Tensor y = empty(r.sizes, TensorOptions(x.dtype(), x.device()));
  kernels::variance(x.device(), x.dtype(), {.reduction = {x, r.mask, y}, .mean = center, .divisor = divisor});
  const autograd::CallNote note({.dims = r.mask});
  if (autograd::recording(x)) {
    autograd::record(kVar, y, {&x}, [r, divisor, x = save(x), center = save(center)](Backward& b) {
      const Tensor saved = b.saved(x), around = b.saved(center);
      const Tensor g = mul(b.grad().reshape(r.kept), Scalar(2 / divisor));
      const Tensor of = b.create_graph() ? mean(saved.to(around.dtype()), r.dims(), true) : around;
      b.set(0, mul(sub(saved, of), g).to(saved.dtype()));
    });
  }
  return y;
}
Tensor Tensor::var(const Dims& dims, bool unbiased, bool keepdim) const {
  return tapestry::var(*this, dims, unbiased, keepdim);
}

Tensor logsumexp(const Tensor& x, const Dims& dims, bool keepdim) {
  if (const autograd::Autocast cast(kLogsumexp, x); cast) return logsumexp(cast(x), dims, keepdim);
  const Reduced r(kLogsumexp, x, dims, keepdim);
  const TensorOptions accumulation(accumulation_dtype(x.dtype()), x.device());
  const Tensor y = empty(r.sizes, TensorOptions(x.dtype(), x.device()));
  Tensor shift;
  if (r.count > 0) {
    shift = empty(r.kept, accumulation);
    kernels::max(x.device(), x.dtype(), {.reduction = {x, r.mask, shift}, .indices = nullptr});
  } else {
    shift = full(r.kept, -std::numeric_limits<double>::infinity(), accumulation);
  }
  kernels::logsumexp(x.device(), x.dtype(), {.reduction = {x, r.mask, y}, .max = shift});
  const autograd::CallNote note({.dims = r.mask});
  if (autograd::recording(x)) {
    autograd::record(kLogsumexp, y, {&x}, [kept = r.kept, x = save(x), y = save_output(y)](Backward& b) {
      b.set(0, mul(exp(sub(b.saved(x), b.saved(y).reshape(kept))), b.grad().reshape(kept)));
    });
  }
  return y;
}
Tensor Tensor::logsumexp(const Dims& dims, bool keepdim) const {
  return tapestry::logsumexp(*this, dims, keepdim);
}

}  // namespace tapestry
