#include "tapestry/autograd/ops/scan.h"

#include <limits>

#include "tapestry/autograd/internal/autocast.h"
#include "tapestry/autograd/internal/record_observer.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/index.h"
#include "tapestry/autograd/ops/internal/rows.h"
#include "tapestry/autograd/ops/rearrange.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/autograd/tape.h"
#include "tapestry/core/internal/capture_state.h"
#include "tapestry/kernels/ops/scan.h"

namespace tapestry {
namespace {

using autograd::Backward;
using autograd::converted;
using autograd::Grad;
using autograd::Op;
using autograd::RowLayout;

const Op kCumsum("cumsum", Grad::twice, kAllDTypes);
const Op kCumprod("cumprod", Grad::twice, kAllDTypes);
const Op kCummax("cummax", Grad::twice, kAllDTypes);
const Op kCummin("cummin", Grad::twice, kAllDTypes);
const Op kLogcumsumexp("logcumsumexp", Grad::twice, kFloats);

// Returns the dtype in which a tensor of this dtype is scanned. There are few, to keep the library small; a
// conversion takes little of a scan's time.
DType scanned_in(DType dtype) {
  return is_floating(dtype) ? autograd::accumulation_dtype(dtype) : DType::i64;
}

// Scans the rows of `x`, which has a dtype of the kernels.
Tensor scanned(const decltype(kernels::cumsum)& slot, const RowLayout& layout, const Tensor& x,
               bool reverse) {
  const Tensor y = layout.empty_rows(layout.n, x.dtype(), x.device());
  if (y.numel() > 0)
    slot(x.device(), x.dtype(), {.rows = layout.rows, .n = layout.n, .reverse = reverse, .x = x, .y = y});
  return y;
}

std::pair<Tensor, Tensor> extreme(const Op& op, const Tensor& x, std::int64_t dim, bool largest) {
  const RowLayout layout(op, x, dim);
  const DType dtype = scanned_in(x.dtype());
  const Tensor in = converted(layout.rows_of(x), dtype);
  const Tensor values = layout.empty_rows(layout.n, dtype, x.device()),
               indices = layout.empty_rows(layout.n, DType::i64, x.device());
  if (values.numel() > 0)
    kernels::cummax(
        x.device(), dtype,
        {.rows = layout.rows, .n = layout.n, .largest = largest, .x = in, .y = values, .indices = indices});
  const Tensor y = layout.restored(converted(values, x.dtype()));
  const autograd::CallNote note({.dims = 1u << layout.dim()});
  if (autograd::recording(x)) {
    autograd::record(op, y, {&x}, [layout, indices = autograd::save(indices)](Backward& b) {
      const Tensor at = b.saved(indices);
      if (b.create_graph())
        return b.set(0, scatter_add(zeros_like(b.grad()), layout.dim(), layout.restored(at), b.grad()));
      const Tensor g = converted(layout.rows_of(b.grad()), scanned_in(b.grad().dtype()));
      const Tensor dx = layout.empty_rows(layout.n, g.dtype(), g.device());
      if (dx.numel() > 0)
        kernels::cummax_backward(g.device(), g.dtype(),
                                 {.rows = layout.rows, .n = layout.n, .index = at, .dy = g, .dx = dx});
      b.set(0, layout.restored(converted(dx, b.grad().dtype())));
    });
  }
  return {y, layout.restored(indices)};
}

// ---- gradients by operations

Tensor reverse_cumsum(const Tensor& x, int dim) {
  return x.dim() == 0 ? x : flip(cumsum(flip(x, dim), dim), dim);
}

// The gradient of x_i is the sum of g_k y_k / x_i over all k >= i. If x has zeros, the product without x_i is
// computed for each i instead, which takes O(n^2) time.
Tensor cumprod_gradient(const Tensor& g, const Tensor& x, int dim) {
  if (x.dim() == 0) return g;
  if (x.numel() == 0) return zeros_like(x);
  if (!x.device().is_meta()) tapestry::detail::check_host_reads("cumprod", x);
  if (x.device().is_meta() || !any(eq(x, 0)).item<bool>())
    return reverse_cumsum(g * cumprod(x, dim), dim) / x;
  std::vector<Tensor> dx;
  const std::int64_t n = x.size(dim);
  Tensor before = ones_like(x.narrow(dim, 0, 1));  // the product of the elements before i
  for (std::int64_t i = 0; i < n; ++i) {
    const Tensor after = x.narrow(dim, i + 1, n - i - 1);
    const Tensor products = cumprod(cat({before, after}, dim), dim);
    dx.push_back(sum(g.narrow(dim, i, n - i) * products, dim, true));
    before = before * x.narrow(dim, i, 1);
  }
  return cat(dx, dim);
}

// The gradient of x_i is the sum of g_k exp(x_i - y_k) over all k >= i: a product with the matrix of these
// exponentials, which takes O(n^2) memory.
Tensor logcumsumexp_gradient(const Tensor& g, const Tensor& x, int dim) {
  if (x.dim() == 0) return g;
  const Tensor rows = transpose(x, dim, -1), sums = transpose(logcumsumexp(x, dim), dim, -1);
  const std::int64_t n = rows.size(-1);
  const Tensor later = triu(ones({n, n}, TensorOptions(DType::boolean, x.device())));
  const Tensor exponents = masked_fill(unsqueeze(rows, -1) - unsqueeze(sums, -2), logical_not(later),
                                       -std::numeric_limits<double>::infinity());
  return transpose(sum(exp(exponents) * unsqueeze(transpose(g, dim, -1), -2), -1), dim, -1);
}

}  // namespace

Tensor cumsum(const Tensor& x, std::int64_t dim) {
  if (const autograd::Autocast cast(kCumsum, x); cast) return cumsum(cast(x), dim);
  const RowLayout layout(kCumsum, x, dim);
  const DType dtype = scanned_in(x.dtype()), result = is_floating(x.dtype()) ? x.dtype() : dtype;
  const Tensor rows = scanned(kernels::cumsum, layout, converted(layout.rows_of(x), dtype), false);
  const Tensor y = layout.restored(converted(rows, result));
  const autograd::CallNote note({.dims = 1u << layout.dim()});
  if (autograd::recording(x)) {
    autograd::record(kCumsum, y, {&x}, [layout](Backward& b) {
      if (b.create_graph()) return b.set(0, reverse_cumsum(b.grad(), layout.dim()));
      const Tensor g = converted(layout.rows_of(b.grad()), scanned_in(b.grad().dtype()));
      b.set(0, layout.restored(converted(scanned(kernels::cumsum, layout, g, true), b.grad().dtype())));
    });
  }
  return y;
}
Tensor Tensor::cumsum(std::int64_t dim) const { return tapestry::cumsum(*this, dim); }

Tensor cumprod(const Tensor& x, std::int64_t dim) {
  if (const autograd::Autocast cast(kCumprod, x); cast) return cumprod(cast(x), dim);
  const RowLayout layout(kCumprod, x, dim);
  const DType dtype = scanned_in(x.dtype()), result = is_floating(x.dtype()) ? x.dtype() : dtype;
  const Tensor in = converted(layout.rows_of(x), dtype), rows = scanned(kernels::cumprod, layout, in, false);
  const Tensor y = layout.restored(converted(rows, result));
  const autograd::CallNote note({.dims = 1u << layout.dim()});
  if (autograd::recording(x)) {
    autograd::record(
        kCumprod, y, {&x},
        [layout, x = autograd::save(x), rows = autograd::save(rows.detach())](Backward& b) {
          if (b.create_graph()) return b.set(0, cumprod_gradient(b.grad(), b.saved(x), layout.dim()));
          const Tensor products = b.saved(rows);
          const DType wide = products.dtype();
          const Tensor factors = converted(layout.rows_of(b.saved(x)), wide),
                       g = converted(layout.rows_of(b.grad()), wide);
          const Tensor dx = layout.empty_rows(layout.n, wide, g.device());
          if (dx.numel() > 0)
            kernels::cumprod_backward(
                g.device(), wide,
                {.rows = layout.rows, .n = layout.n, .x = factors, .y = products, .dy = g, .dx = dx});
          b.set(0, layout.restored(converted(dx, b.grad().dtype())));
        });
  }
  return y;
}
Tensor Tensor::cumprod(std::int64_t dim) const { return tapestry::cumprod(*this, dim); }

Tensor logcumsumexp(const Tensor& x, std::int64_t dim) {
  const RowLayout layout(kLogcumsumexp, x, dim);
  const Tensor in = converted(layout.rows_of(x), scanned_in(x.dtype()));
  const Tensor rows = scanned(kernels::logcumsumexp, layout, in, false);
  const Tensor y = layout.restored(converted(rows, x.dtype()));
  const autograd::CallNote note({.dims = 1u << layout.dim()});
  if (autograd::recording(x)) {
    autograd::record(kLogcumsumexp, y, {&x},
                     [layout, x = autograd::save(x), rows = autograd::save(rows.detach())](Backward& b) {
                       if (b.create_graph())
                         return b.set(0, logcumsumexp_gradient(b.grad(), b.saved(x), layout.dim()));
                       const Tensor sums = b.saved(rows);
                       const Tensor in = converted(layout.rows_of(b.saved(x)), sums.dtype()),
                                    g = converted(layout.rows_of(b.grad()), sums.dtype());
                       const Tensor dx = layout.empty_rows(layout.n, sums.dtype(), g.device());
                       if (dx.numel() > 0)
                         kernels::logcumsumexp_backward(
                             g.device(), sums.dtype(),
                             {.rows = layout.rows, .n = layout.n, .x = in, .y = sums, .dy = g, .dx = dx});
                       b.set(0, layout.restored(converted(dx, b.grad().dtype())));
                     });
  }
  return y;
}
Tensor Tensor::logcumsumexp(std::int64_t dim) const { return tapestry::logcumsumexp(*this, dim); }

const Tensor& Tensor::cumsum_(std::int64_t dim) const {
  return autograd::compute_in_place(kCumsum, *this, {},
                                    [&](const Tensor& x) { return tapestry::cumsum(x, dim); });
}
const Tensor& Tensor::cumprod_(std::int64_t dim) const {
  return autograd::compute_in_place(kCumprod, *this, {},
                                    [&](const Tensor& x) { return tapestry::cumprod(x, dim); });
}

std::pair<Tensor, Tensor> cummax(const Tensor& x, std::int64_t dim) { return extreme(kCummax, x, dim, true); }
std::pair<Tensor, Tensor> cummin(const Tensor& x, std::int64_t dim) {
  return extreme(kCummin, x, dim, false);
}
std::pair<Tensor, Tensor> Tensor::cummax(std::int64_t dim) const { return tapestry::cummax(*this, dim); }
std::pair<Tensor, Tensor> Tensor::cummin(std::int64_t dim) const { return tapestry::cummin(*this, dim); }

}  // namespace tapestry
