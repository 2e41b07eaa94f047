// index_select and its gradient.
#include "tapestry/autograd/ops/index.h"

#include "tapestry/kernels/ops/index.h"

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/internal/bad_index.h"
#include "tapestry/autograd/ops/internal/common.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/autograd/tape.h"

namespace tapestry {
namespace {

using autograd::Backward;
using autograd::Grad;

const autograd::Op kIndexSelect("index_select", Grad::differentiable, kAllDTypes);

// The products of the sizes before dimension `dim`, at it, and after it.
struct Split {
  std::int64_t outer = 1, rows = 1, inner = 1;
  Split(const Shape& sizes, int dim) {
    for (int i = 0; i < sizes.size(); ++i) (i < dim ? outer : i == dim ? rows : inner) *= sizes[i];
  }
};

}  // namespace

Tensor index_select(const Tensor& x, std::int64_t dim, const Tensor& index) {
  detail::check_defined("index_select", x);
  detail::check_defined("index_select", index, "index");
  check<TypeError>(contains(kIntegers, index.dtype()), "[index_select] index is ", index.dtype(),
                   "; indices are integers");
  check(index.dim() <= 1, "[index_select] index has shape ", index.sizes(), "; pass a list of indices, 1-d");
  check<DeviceError>(index.device() == x.device(), "[index_select] index is on ", index.device(),
                     ", the tensor on ", x.device(), "; move one of them with .to()");
  const int d = wrap_dim("index_select", dim, x.dim());
  Tensor source, rows;
  {
    const NoGradGuard no_grad;
    source = x.contiguous();
    rows = index.to(DType::i64).contiguous();
  }
  Shape sizes = x.sizes();
  if (x.dim() > 0) sizes[d] = index.numel();
  else check(index.numel() == 1, "[index_select] ", index.numel(), " indices into a 0-d tensor; pass one");
  const Tensor y = empty(sizes, TensorOptions(x.dtype(), x.device()));
  autograd::BadIndex bad(x.device());
  const Split s(x.sizes(), d);
  kernels::index_select(x.device(), x.dtype(),
                        {.outer = s.outer,
                         .rows = s.rows,
                         .count = rows.numel(),
                         .inner = s.inner,
                         .index = rows,
                         .x = source,
                         .y = y,
                         .first_bad = bad.cell()});
  bad.check("index_select", "index", rows, s.rows);

  if (autograd::recording(x)) {
    autograd::record(kIndexSelect, y, {&x}, [d, from = x.sizes(), rows = autograd::save(rows)](Backward& b) {
      const Tensor g = b.grad().contiguous(), index = b.saved(rows);
      const Tensor dx = zeros(from, TensorOptions(autograd::accumulation_dtype(g.dtype()), g.device()));
      const Split s(from, d);
      kernels::index_add(g.device(), g.dtype(),
                         {.outer = s.outer,
                          .rows = s.rows,
                          .count = index.numel(),
                          .inner = s.inner,
                          .index = index,
                          .dy = g,
                          .dx = dx,
                          .first_bad = nullptr});  // not needed, because forward has checked the indices
      b.set(0, dx.to(g.dtype()));
    });
  }
  return y;
}
Tensor Tensor::index_select(std::int64_t dim, const Tensor& index) const {
  return tapestry::index_select(*this, dim, index);
}

}  // namespace tapestry
