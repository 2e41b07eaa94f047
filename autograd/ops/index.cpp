// Operations with a 1-d tensor of indices of one dimension.
#include "tapestry/autograd/ops/index.h"

#include "tapestry/autograd/internal/autocast.h"
#include "tapestry/autograd/internal/record_observer.h"
#include "tapestry/autograd/ops/arithmetic.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/internal/bad_index.h"
#include "tapestry/autograd/ops/internal/common.h"
#include "tapestry/autograd/ops/internal/indexed.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/autograd/tape.h"
#include "tapestry/kernels/ops/index.h"

namespace tapestry {
namespace {

using autograd::Backward;
using autograd::Grad;

using autograd::Op;
using autograd::Selection;

const Op kIndexSelect("index_select", Grad::twice, kAllDTypes);
const Op kIndexAdd("index_add", Grad::twice, kAllDTypes);
const Op kIndexCopy("index_copy", Grad::twice, kAllDTypes);
const Op kIndexFill("index_fill", Grad::twice, kAllDTypes);

// The products of the sizes before dimension `dim`, at it, and after it.
struct Split {
  std::int64_t outer = 1, rows = 1, inner = 1;
  Split(const Shape& sizes, int dim) {
    for (int i = 0; i < sizes.size(); ++i) (i < dim ? outer : i == dim ? rows : inner) *= sizes[i];
  }
};

// Selects entries of one dimension.
Selection entries(const Op& op, const Tensor& x, std::int64_t dim, const Tensor& index) {
  const Tensor i64 = autograd::checked_index(op.name, x, index);
  check(index.dim() <= 1, "[", op.name, "] index has shape ", index.sizes(), "; pass a list of indices, 1-d");
  const int d = wrap_dim(op.name, dim, x.dim());
  const std::int64_t n = index.numel();
  Selection s;
  s.sizes = x.dim() == 0 ? Shape(1) : x.sizes();
  s.sizes[d] = n;
  Shape sizes = Shape::filled(s.sizes.size(), 1), strides = Shape::filled(s.sizes.size(), 0);
  sizes[d] = n;
  strides[d] = index.dim() == 0 ? 0 : i64.strides()[0];
  for (int i = 0; i < s.sizes.size(); ++i) s.dims.push_back(i == d ? -1 : i);
  s.index.push_back({detail::raw_view(i64, sizes, strides, i64.storage_offset()), d});
  return s;
}

void check_source(const Op& op, const Tensor& x, const Selection& s, const Tensor& source) {
  autograd::check_values(op.name, x, source, "source");
  const bool one_element = s.sizes.size() == 1 && s.sizes[0] == 1 && source.dim() == 0;
  check(source.sizes() == s.sizes || one_element, "[", op.name, "] source has shape ", source.sizes(),
        ", expected ", s.sizes,
        ": the tensor's shape, with the number of indices as the size of the dimension");
}

Tensor scaled(const Tensor& x, const Tensor& source, const Scalar& alpha) {
  check<TypeError>(!alpha.is_real() || is_floating(x.dtype()), "[index_add] alpha is ", alpha.to_double(),
                   " and the tensor ", x.dtype(), "; alpha must be an integer too");
  if (alpha.to_double() == 1) return source;
  return source.mul(alpha).to(x.dtype());
}

Selection entries_to_fill(const Tensor& x, std::int64_t dim, const Tensor& index) {
  Selection s = entries(kIndexFill, x, dim, index);
  s.wraps = true;
  return s;
}

}  // namespace

Tensor index_select(const Tensor& x, std::int64_t dim, const Tensor& index) {
  detail::check_defined("index_select", x);
  detail::check_defined("index_select", index, "index");
  check<TypeError>(autograd::is_index(index.dtype()), "[index_select] index is ", index.dtype(),
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

  const autograd::CallNote note({.dims = 1u << d, .constants = {&index}});
  if (autograd::recording(x)) {
    autograd::record(kIndexSelect, y, {&x}, [d, from = x.sizes(), rows = autograd::save(rows)](Backward& b) {
      const Tensor index = b.saved(rows);
      if (b.create_graph())
        return b.set(0, index_add(zeros(from, TensorOptions(b.grad().dtype(), b.grad().device())), d, index,
                                  b.grad()));
      const Tensor g = b.grad().contiguous();
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

Tensor index_add(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& source,
                 const Scalar& alpha) {
  const Selection s = entries(kIndexAdd, x, dim, index);
  check_source(kIndexAdd, x, s, source);
  return autograd::add_recorded(kIndexAdd, x, s, scaled(x, source, alpha));
}
Tensor Tensor::index_add(std::int64_t dim, const Tensor& index, const Tensor& source,
                         const Scalar& alpha) const {
  return tapestry::index_add(*this, dim, index, source, alpha);
}
const Tensor& Tensor::index_add_(std::int64_t dim, const Tensor& index, const Tensor& source,
                                 const Scalar& alpha) const {
  const Selection s = entries(kIndexAdd, *this, dim, index);
  check_source(kIndexAdd, *this, s, source);
  autograd::add_in_place(kIndexAdd, *this, s, scaled(*this, source, alpha));
  return *this;
}

Tensor index_copy(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& source) {
  if (const autograd::Autocast cast(kIndexCopy, x, source); cast)
    return index_copy(cast(x), dim, index, cast(source));
  const Selection s = entries(kIndexCopy, x, dim, index);
  check_source(kIndexCopy, x, s, source);
  return autograd::put_recorded(kIndexCopy, x, s, source);
}
Tensor Tensor::index_copy(std::int64_t dim, const Tensor& index, const Tensor& source) const {
  return tapestry::index_copy(*this, dim, index, source);
}
const Tensor& Tensor::index_copy_(std::int64_t dim, const Tensor& index, const Tensor& source) const {
  const Selection s = entries(kIndexCopy, *this, dim, index);
  check_source(kIndexCopy, *this, s, source);
  autograd::put_in_place(kIndexCopy, *this, s, source);
  return *this;
}

Tensor index_fill(const Tensor& x, std::int64_t dim, const Tensor& index, const Scalar& value) {
  return autograd::put_recorded(kIndexFill, x, entries_to_fill(x, dim, index),
                                element_like(kIndexFill, x, value));
}
Tensor Tensor::index_fill(std::int64_t dim, const Tensor& index, const Scalar& value) const {
  return tapestry::index_fill(*this, dim, index, value);
}
const Tensor& Tensor::index_fill_(std::int64_t dim, const Tensor& index, const Scalar& value) const {
  autograd::put_in_place(kIndexFill, *this, entries_to_fill(*this, dim, index),
                         element_like(kIndexFill, *this, value));
  return *this;
}

}  // namespace tapestry
