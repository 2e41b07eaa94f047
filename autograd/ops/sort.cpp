// sort, argsort, topk, kthvalue and median. unique is in sort_unique.cpp, quantile in sort_quantile.cpp.
#include "tapestry/autograd/ops/sort.h"

#include <limits>

#include "tapestry/autograd/internal/record_observer.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/index.h"
#include "tapestry/autograd/ops/internal/reduced.h"
#include "tapestry/autograd/ops/internal/rows.h"
#include "tapestry/autograd/tape.h"
#include "tapestry/kernels/ops/sort.h"

namespace tapestry {
namespace {

using autograd::Backward;
using autograd::Grad;
using autograd::Op;
using autograd::RowLayout;

const Op kSort("sort", Grad::twice, kAllDTypes);
const Op kArgsort("argsort", Grad::none, kAllDTypes);
const Op kTopk("topk", Grad::twice, kNumbers);
const Op kKthvalue("kthvalue", Grad::twice, kNumbers);
const Op kMedian("median", Grad::twice, kNumbers);

// Records values[r, j] = x[r, indices[r, j]]. `values` has the shape of the result, `indices` the layout of
// rows.
void record_picked(const Op& op, const Tensor& values, const Tensor& x, const RowLayout& layout,
                   std::int64_t k, const Tensor& indices) {
  if (!autograd::recording(x)) return;
  const autograd::CallNote note({.dims = 1u << layout.dim()});
  autograd::record(op, values, {&x}, [layout, k, indices = autograd::save(indices)](Backward& b) {
    const Tensor at = b.saved(indices), grad = b.grad().reshape(layout.sizes_of(k));
    if (b.create_graph()) {
      const Tensor none = zeros(layout.sizes_of(layout.n), TensorOptions(grad.dtype(), grad.device()));
      return b.set(0, scatter(none, layout.dim(), layout.restored(at), grad));
    }
    const Tensor g = layout.rows_of(grad);
    const Tensor dx = layout.empty_rows(layout.n, g.dtype(), g.device());
    dx.zero_();
    if (at.numel() > 0)
      kernels::put(g.device(), g.dtype(),
                   {.rows = layout.rows, .n = layout.n, .k = k, .index = at, .x = g, .y = dx});
    b.set(0, layout.restored(dx));
  });
}

// Returns the first k elements of each row in order, and their indices. The values are undefined if
// `with_values` is false.
std::pair<Tensor, Tensor> first_in_order(const Op& op, const Tensor& x, const RowLayout& layout,
                                         std::int64_t k, bool descending, bool with_values) {
  const Tensor indices = layout.empty_rows(k, DType::i64, x.device());
  const Tensor values = with_values ? layout.empty_rows(k, x.dtype(), x.device()) : Tensor();
  if (indices.numel() > 0)
    kernels::sort(x.device(), x.dtype(),
                  {.rows = layout.rows,
                   .n = layout.n,
                   .k = k,
                   .descending = descending,
                   .x = layout.rows_of(x),
                   .values = values,
                   .indices = indices});
  if (!with_values) return {Tensor(), layout.restored(indices)};
  const Tensor result = layout.restored(values);
  record_picked(op, result, x, layout, k, indices);
  return {result, layout.restored(indices)};
}

// Returns the k-th element of each row, and its index. k counts from 0.
std::pair<Tensor, Tensor> kth(const Op& op, const Tensor& x, const RowLayout& layout, std::int64_t k,
                              bool propagate_nan, bool keepdim) {
  const Tensor values = layout.empty_rows(1, x.dtype(), x.device()),
               indices = layout.empty_rows(1, DType::i64, x.device());
  kernels::kthvalue(x.device(), x.dtype(),
                    {.rows = layout.rows,
                     .n = layout.n,
                     .k = k,
                     .propagate_nan = propagate_nan,
                     .x = layout.rows_of(x),
                     .values = values,
                     .indices = indices});
  Shape sizes = layout.sizes_of(1);
  if (!keepdim && !sizes.empty()) sizes.erase(layout.dim());
  const Tensor result = layout.restored(values, sizes);
  record_picked(op, result, x, layout, 1, indices);
  return {result, layout.restored(indices, sizes)};
}

}  // namespace

std::pair<Tensor, Tensor> sort(const Tensor& x, std::int64_t dim, bool descending) {
  const RowLayout layout(kSort, x, dim);
  return first_in_order(kSort, x, layout, layout.n, descending, true);
}
std::pair<Tensor, Tensor> Tensor::sort(std::int64_t dim, bool descending) const {
  return tapestry::sort(*this, dim, descending);
}

Tensor argsort(const Tensor& x, std::int64_t dim, bool descending) {
  const RowLayout layout(kArgsort, x, dim);
  return first_in_order(kArgsort, x, layout, layout.n, descending, false).second;
}
Tensor Tensor::argsort(std::int64_t dim, bool descending) const {
  return tapestry::argsort(*this, dim, descending);
}

std::pair<Tensor, Tensor> topk(const Tensor& x, std::int64_t k, std::int64_t dim, bool largest, bool) {
  const RowLayout layout(kTopk, x, dim);
  check(k >= 0 && k <= layout.n, "[topk] k is ", k, ", but dimension ", layout.dim(), " of shape ", x.sizes(),
        " has ", layout.n, " elements; give k in [0, ", layout.n, "]");
  check(k == 1 || x.dim() > 0, "[topk] k is ", k, " for a 0-d tensor; give 1");
  return first_in_order(kTopk, x, layout, k, largest, true);
}
std::pair<Tensor, Tensor> Tensor::topk(std::int64_t k, std::int64_t dim, bool largest, bool sorted) const {
  return tapestry::topk(*this, k, dim, largest, sorted);
}

std::pair<Tensor, Tensor> kthvalue(const Tensor& x, std::int64_t k, std::int64_t dim, bool keepdim) {
  const RowLayout layout(kKthvalue, x, dim);
  check(k >= 1 && k <= layout.n, "[kthvalue] k is ", k, ", but dimension ", layout.dim(), " of shape ",
        x.sizes(), " has ", layout.n, " elements; give k in [1, ", layout.n, "]");
  return kth(kKthvalue, x, layout, k - 1, false, keepdim);
}
std::pair<Tensor, Tensor> Tensor::kthvalue(std::int64_t k, std::int64_t dim, bool keepdim) const {
  return tapestry::kthvalue(*this, k, dim, keepdim);
}

std::pair<Tensor, Tensor> median(const Tensor& x, std::int64_t dim, bool keepdim) {
  const RowLayout layout(kMedian, x, dim);
  check(layout.n > 0, "[median] dimension ", layout.dim(), " of shape ", x.sizes(),
        " is empty; reduce a dimension that has elements");
  return kth(kMedian, x, layout, (layout.n - 1) / 2, true, keepdim);
}
std::pair<Tensor, Tensor> Tensor::median(std::int64_t dim, bool keepdim) const {
  return tapestry::median(*this, dim, keepdim);
}

Tensor median(const Tensor& x) {
  const autograd::Reduced r(kMedian, x, {}, false);
  Tensor y;
  {
    const NoGradGuard no_grad;
    if (x.numel() > 0) {
      const Tensor flat = x.reshape({-1});
      y = kth(kMedian, flat, RowLayout(kMedian, flat, 0), (x.numel() - 1) / 2, true, false).first;
    } else {
      check<TypeError>(is_floating(x.dtype()), "[median] a ", x.dtype(), " tensor of shape ", x.sizes(),
                       " has no median; pass elements");
      y = full({}, std::numeric_limits<double>::quiet_NaN(), TensorOptions(x.dtype(), x.device()));
    }
  }
  if (autograd::recording(x)) {
    autograd::record(kMedian, y, {&x}, [r, x = autograd::save(x), y = autograd::save_output(y)](Backward& b) {
      const Tensor hits = autograd::is_best(b.saved(x), b.saved(y));
      const Tensor share = autograd::divided_among(b.grad().reshape(r.kept), hits, r);
      const TensorOptions options(share.dtype(), share.device());
      b.set(0, where(hits, share, zeros({}, options)));
    });
  }
  return y;
}
Tensor Tensor::median() const { return tapestry::median(*this); }

}  // namespace tapestry
