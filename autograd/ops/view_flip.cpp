// flip: a copy of a view with negative strides.
#include "tapestry/autograd/internal/record_observer.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/internal/common.h"
#include "tapestry/autograd/ops/internal/parts.h"
#include "tapestry/autograd/ops/rearrange.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/autograd/tape.h"
#include "tapestry/kernels/ops/copy.h"

namespace tapestry {
namespace {

using autograd::Backward;
using autograd::Grad;
using autograd::Op;
using autograd::planned;
using autograd::raw_flip;
using autograd::result_like;
using detail::check_defined;

const Op kFlip("flip", Grad::twice, kAllDTypes);

Tensor flipped(const Tensor& x, unsigned mask) {
  const Tensor y = result_like(x.sizes(), x.dtype(), {&x});
  if (x.numel() > 0) kernels::copy(y.device(), y.dtype(), planned(y, raw_flip(x, mask)));
  return y;
}

}  // namespace

Tensor autograd::raw_flip(const Tensor& x, unsigned mask) {
  Shape strides = x.strides();
  std::int64_t offset = x.storage_offset();
  for (int d = 0; d < x.dim(); ++d) {
    if ((mask >> d & 1) == 0) continue;
    offset += (x.sizes()[d] - 1) * strides[d];
    strides[d] = -strides[d];
  }
  return tapestry::detail::raw_view(x, x.sizes(), strides, offset);
}

Tensor flip(const Tensor& x, const Dims& dims) {
  check_defined("flip", x);
  unsigned mask = 0;
  for (const std::int64_t dim : dims) {
    const unsigned own = 1u << wrap_dim("flip", dim, x.dim());
    check((mask & own) == 0, "[flip] dimension ", dim, " appears twice in ", dims,
          "; name each dimension once");
    mask |= own;
  }
  const Tensor y = flipped(x, mask);
  const autograd::CallNote note({.dims = mask});
  if (autograd::recording(x))
    autograd::record(kFlip, y, {&x}, [dims](Backward& b) { b.set(0, flip(b.grad(), dims)); });
  return y;
}
Tensor Tensor::flip(const Dims& dims) const { return tapestry::flip(*this, dims); }

}  // namespace tapestry
