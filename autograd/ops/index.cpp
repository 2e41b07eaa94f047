// Rows by index.
#include "tapestry/kernels/ops/index.h"

#include "tapestry/autograd/ops/bad_index.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/autograd/tape.h"

namespace tapestry {
namespace {

using autograd::Backward;
using autograd::Grad;

const autograd::Op kIndexSelect("index_select", Grad::differentiable, kAllDTypes);

kernels::IndexRows rows_of(const Shape& sizes, int dim, const Tensor& index, std::int64_t* first_bad) {
  kernels::IndexRows r{.outer = 1,
                       .rows = 1,
                       .count = index.numel(),
                       .inner = 1,
                       .index = index.data<std::int64_t>(),
                       .first_bad = first_bad};
  for (int i = 0; i < sizes.size(); ++i) (i < dim ? r.outer : i == dim ? r.rows : r.inner) *= sizes[i];
  return r;
}

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
  const kernels::IndexRows r = rows_of(x.sizes(), d, rows, bad.cell());
  kernels::index_select(x.device(), x.dtype(), r, source.raw_data(), y.raw_data());
  bad.check("index_select", "index", rows, r.rows);

  if (autograd::recording(x)) {
    autograd::record(kIndexSelect, y, {&x}, [d, from = x.sizes(), rows = autograd::save(rows)](Backward& b) {
      const Tensor g = b.grad().contiguous(), index = b.saved(rows);
      const bool half = !contains(kFullFloats, g.dtype());
      const Tensor dx = zeros(from, TensorOptions(half ? DType::f32 : g.dtype(), g.device()));
      // Its indices were reported in forward.
      kernels::index_add(g.device(), g.dtype(), rows_of(from, d, index, nullptr), g.raw_data(),
                         dx.raw_data());
      b.set(0, dx.to(g.dtype()));
    });
  }
  return y;
}
Tensor Tensor::index_select(std::int64_t dim, const Tensor& index) const {
  return tapestry::index_select(*this, dim, index);
}

}  // namespace tapestry
