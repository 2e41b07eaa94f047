#include "tapestry/autograd/ops/scan.h"

#include "tapestry/autograd/ops/internal/rows.h"
#include "tapestry/autograd/tape.h"
#include "tapestry/kernels/ops/scan.h"

namespace tapestry {
namespace {

using autograd::Backward;
using autograd::converted;
using autograd::Grad;
using autograd::Op;
using autograd::RowLayout;

const Op kCumsum("cumsum", Grad::differentiable, kAllDTypes);
const Op kCumprod("cumprod", Grad::differentiable, kAllDTypes);
const Op kCummax("cummax", Grad::differentiable, kAllDTypes);
const Op kCummin("cummin", Grad::differentiable, kAllDTypes);

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
  if (autograd::recording(x)) {
    autograd::record(op, y, {&x}, [layout, indices = autograd::save_output(indices)](Backward& b) {
      const Tensor at = b.saved(indices);
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

}  // namespace

Tensor cumsum(const Tensor& x, std::int64_t dim) {
  const RowLayout layout(kCumsum, x, dim);
  const DType dtype = scanned_in(x.dtype()), result = is_floating(x.dtype()) ? x.dtype() : dtype;
  const Tensor rows = scanned(kernels::cumsum, layout, converted(layout.rows_of(x), dtype), false);
  const Tensor y = layout.restored(converted(rows, result));
  if (autograd::recording(x)) {
    autograd::record(kCumsum, y, {&x}, [layout](Backward& b) {
      const Tensor g = converted(layout.rows_of(b.grad()), scanned_in(b.grad().dtype()));
      b.set(0, layout.restored(converted(scanned(kernels::cumsum, layout, g, true), b.grad().dtype())));
    });
  }
  return y;
}
Tensor Tensor::cumsum(std::int64_t dim) const { return tapestry::cumsum(*this, dim); }

Tensor cumprod(const Tensor& x, std::int64_t dim) {
  const RowLayout layout(kCumprod, x, dim);
  const DType dtype = scanned_in(x.dtype()), result = is_floating(x.dtype()) ? x.dtype() : dtype;
  const Tensor in = converted(layout.rows_of(x), dtype), rows = scanned(kernels::cumprod, layout, in, false);
  const Tensor y = layout.restored(converted(rows, result));
  if (autograd::recording(x)) {
    autograd::record(
        kCumprod, y, {&x}, [layout, x = autograd::save(x), rows = autograd::save_output(rows)](Backward& b) {
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

std::pair<Tensor, Tensor> cummax(const Tensor& x, std::int64_t dim) { return extreme(kCummax, x, dim, true); }
std::pair<Tensor, Tensor> cummin(const Tensor& x, std::int64_t dim) {
  return extreme(kCummin, x, dim, false);
}
std::pair<Tensor, Tensor> Tensor::cummax(std::int64_t dim) const { return tapestry::cummax(*this, dim); }
std::pair<Tensor, Tensor> Tensor::cummin(std::int64_t dim) const { return tapestry::cummin(*this, dim); }

}  // namespace tapestry
