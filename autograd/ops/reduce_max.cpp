// Reductions that pick an element: max, min, amax, amin, argmax, argmin.
#include "tapestry/autograd/internal/record_observer.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/index.h"
#include "tapestry/autograd/ops/internal/common.h"
#include "tapestry/autograd/ops/internal/reduced.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/autograd/tape.h"
#include "tapestry/kernels/ops/index.h"
#include "tapestry/kernels/ops/reduce.h"

namespace tapestry {
namespace {

using autograd::Backward;
using autograd::Grad;
using autograd::Op;
using autograd::Reduced;
using autograd::save;
using autograd::save_output;

const Op kMax("max", Grad::twice, kAllDTypes);
const Op kMin("min", Grad::twice, kAllDTypes);
const Op kAmax("amax", Grad::twice, kAllDTypes);
const Op kAmin("amin", Grad::twice, kAllDTypes);
const Op kArgmax("argmax", Grad::none, kAllDTypes);
const Op kArgmin("argmin", Grad::none, kAllDTypes);

using ExtremeSlot = decltype(kernels::max);

void check_not_empty(const Op& op, const Tensor& x, const Reduced& r) {
  check(r.count > 0 || r.sizes.numel() == 0, "[", op.name,
        "] no elements to choose from in a tensor of shape ", x.sizes(),
        "; reduce dimensions that are not empty");
}

Tensor over_dims(const Op& op, const ExtremeSlot& slot, const Tensor& x, const Dims& dims, bool keepdim) {
  const Reduced r(op, x, dims, keepdim);
  check_not_empty(op, x, r);
  const Tensor y = empty(r.sizes, TensorOptions(x.dtype(), x.device()));
  slot(x.device(), x.dtype(), {.reduction = {x, r.mask, y}, .indices = nullptr});
  const autograd::CallNote note({.dims = r.mask});
  if (autograd::recording(x)) {
    autograd::record(op, y, {&x}, [r, x = save(x), y = save_output(y)](Backward& b) {
      const Tensor hits = autograd::is_best(b.saved(x), b.saved(y).reshape(r.kept));
      const Tensor share = autograd::divided_among(b.grad().reshape(r.kept), hits, r);
      b.set(0, where(hits, share, zeros({}, TensorOptions(share.dtype(), share.device()))));
    });
  }
  return y;
}

std::pair<Tensor, Tensor> over_dim(const Op& op, const ExtremeSlot& slot, const Tensor& x, std::int64_t dim,
                                   bool keepdim) {
  const Reduced r(op, x, dim, keepdim);
  check_not_empty(op, x, r);
  const Tensor y = empty(r.sizes, TensorOptions(x.dtype(), x.device()));
  const Tensor indices = empty(r.sizes, TensorOptions(DType::i64, x.device()));
  slot(x.device(), x.dtype(),
       {.reduction = {x, r.mask, y}, .indices = static_cast<std::int64_t*>(indices.raw_data())});
  const autograd::CallNote note({.dims = r.mask});
  if (autograd::recording(x)) {
    kernels::ScatterArgs s{.outer = 1, .n = 1, .inner = 1, .index = {}, .g = {}, .dx = {}};
    const int d = wrap_dim(op.name, dim, x.dim());
    for (int i = 0; i < x.dim(); ++i) (i < d ? s.outer : i == d ? s.n : s.inner) *= x.sizes()[i];
    autograd::record(op, y, {&x}, [s, r, d, from = x.sizes(), indices = save(indices)](Backward& b) mutable {
      const Tensor at = b.saved(indices);
      if (b.create_graph()) {
        const Tensor none = zeros(from, TensorOptions(b.grad().dtype(), b.grad().device()));
        return b.set(0, scatter(none, d, at.reshape(r.kept), b.grad().reshape(r.kept)));
      }
      const Tensor g = b.grad().contiguous();
      const Tensor dx = empty(from, TensorOptions(g.dtype(), g.device()));
      s.index = at, s.g = g, s.dx = dx;
      kernels::scatter(g.device(), g.dtype(), s);
      b.set(0, dx);
    });
  }
  return {y, indices};
}

Tensor position(const Op& op, const ExtremeSlot& slot, const Tensor& x, std::optional<std::int64_t> dim,
                bool keepdim) {
  const Reduced r(op, x, dim ? Dims(*dim) : Dims(), keepdim);
  check_not_empty(op, x, r);
  const NoGradGuard no_grad;
  const Tensor in = dim ? x : x.reshape({-1});
  const Tensor indices = empty(r.sizes, TensorOptions(DType::i64, x.device()));
  slot(x.device(), x.dtype(),
       {.reduction = {in, dim ? r.mask : 1u, Tensor()},
        .indices = static_cast<std::int64_t*>(indices.raw_data())});
  return indices;
}

}  // namespace

Tensor autograd::is_best(const Tensor& x, const Tensor& best) {
  return where(isnan(best), isnan(x), eq(x, best));
}

Tensor autograd::divided_among(const Tensor& g, const Tensor& hits, const Reduced& r) {
  Dims dims;
  for (int i = 0; i < hits.dim(); ++i)
    if (r.mask >> i & 1) dims.push_back(i);
  if (dims.empty()) return g;
  // Ties are counted in f32, because f16 cannot represent all integers above 2048.
  return div(g.to(accumulation_dtype(g.dtype())), sum(hits, dims, true)).to(g.dtype());
}

Tensor max(const Tensor& x) { return over_dims(kMax, kernels::max, x, {}, false); }
Tensor min(const Tensor& x) { return over_dims(kMin, kernels::min, x, {}, false); }
Tensor Tensor::max() const { return tapestry::max(*this); }
Tensor Tensor::min() const { return tapestry::min(*this); }

Tensor amax(const Tensor& x, const Dims& dims, bool keepdim) {
  return over_dims(kAmax, kernels::max, x, dims, keepdim);
}
Tensor amin(const Tensor& x, const Dims& dims, bool keepdim) {
  return over_dims(kAmin, kernels::min, x, dims, keepdim);
}
Tensor Tensor::amax(const Dims& dims, bool keepdim) const { return tapestry::amax(*this, dims, keepdim); }
Tensor Tensor::amin(const Dims& dims, bool keepdim) const { return tapestry::amin(*this, dims, keepdim); }

std::pair<Tensor, Tensor> max(const Tensor& x, std::int64_t dim, bool keepdim) {
  return over_dim(kMax, kernels::max, x, dim, keepdim);
}
std::pair<Tensor, Tensor> min(const Tensor& x, std::int64_t dim, bool keepdim) {
  return over_dim(kMin, kernels::min, x, dim, keepdim);
}
std::pair<Tensor, Tensor> Tensor::max(std::int64_t dim, bool keepdim) const {
  return tapestry::max(*this, dim, keepdim);
}
std::pair<Tensor, Tensor> Tensor::min(std::int64_t dim, bool keepdim) const {
  return tapestry::min(*this, dim, keepdim);
}

Tensor argmax(const Tensor& x, std::optional<std::int64_t> dim, bool keepdim) {
  return position(kArgmax, kernels::max, x, dim, keepdim);
}
Tensor argmin(const Tensor& x, std::optional<std::int64_t> dim, bool keepdim) {
  return position(kArgmin, kernels::min, x, dim, keepdim);
}
Tensor Tensor::argmax(std::optional<std::int64_t> dim, bool keepdim) const {
  return tapestry::argmax(*this, dim, keepdim);
}
Tensor Tensor::argmin(std::optional<std::int64_t> dim, bool keepdim) const {
  return tapestry::argmin(*this, dim, keepdim);
}

}  // namespace tapestry
