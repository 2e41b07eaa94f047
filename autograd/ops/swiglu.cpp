#include "tapestry/autograd/ops/swiglu.h"

#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/functions.h"
#include "tapestry/autograd/ops/internal/binary.h"
#include "tapestry/kernels/ops/swiglu.h"

namespace tapestry {

Tensor swiglu(const Tensor& gate, const Tensor& up) { return autograd::binary<kernels::Swiglu>(gate, up); }

Tensor functions::glu(const Tensor& x, std::int64_t dim) {
  const autograd::Op& op = autograd::row_op<kernels::Glu>;
  detail::check_defined(op.name, x);
  op.check_dtype(x.dtype());
  check(x.dim() > 0, "[glu] the input has no dimension; give at least one");
  const std::int64_t size = x.size(dim), half = size / 2;
  check(size % 2 == 0, "[glu] size ", size, " of dimension ", dim, " is odd; it must be divisible by 2");
  return autograd::binary<kernels::Glu>(narrow(x, dim, 0, half), narrow(x, dim, half, half));
}

}  // namespace tapestry
