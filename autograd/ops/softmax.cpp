#include "tapestry/autograd/ops/softmax.h"

#include "tapestry/autograd/tape.h"
#include "tapestry/kernels/ops/softmax.h"

namespace tapestry {
namespace {

using autograd::Backward;
using autograd::Grad;
using autograd::Op;

const Op kSoftmax("softmax", Grad::differentiable, kFloats);
const Op kLogSoftmax("log_softmax", Grad::differentiable, kFloats);

kernels::SoftmaxShape shape_of(const Shape& sizes, int dim) {
  kernels::SoftmaxShape s{1, 1, 1};
  for (int i = 0; i < sizes.size(); ++i) (i < dim ? s.outer : i == dim ? s.n : s.inner) *= sizes[i];
  return s;
}

Tensor along(const Op& op, const decltype(kernels::softmax)& forward,
             const decltype(kernels::softmax_backward)& backward, const Tensor& x, std::int64_t dim) {
  detail::check_defined(op.name, x);
  op.check_dtype(x.dtype());
  const kernels::SoftmaxShape s = shape_of(x.sizes(), wrap_dim(op.name, dim, x.dim()));
  const Tensor y = empty(x.sizes(), TensorOptions(x.dtype(), x.device()));
  {
    const NoGradGuard no_grad;
    forward(x.device(), x.dtype(), {.shape = s, .x = x.contiguous(), .y = y});
  }
  if (autograd::recording(x)) {
    autograd::record(op, y, {&x}, [s, &backward, y = autograd::save_output(y)](Backward& b) {
      const Tensor saved = b.saved(y), g = b.grad().contiguous();
      const Tensor dx = empty(saved.sizes(), TensorOptions(saved.dtype(), saved.device()));
      backward(saved.device(), saved.dtype(), {.shape = s, .y = saved, .dy = g, .dx = dx});
      b.set(0, dx);
    });
  }
  return y;
}

}  // namespace

Tensor softmax(const Tensor& x, std::int64_t dim) {
  return along(kSoftmax, kernels::softmax, kernels::softmax_backward, x, dim);
}
Tensor Tensor::softmax(std::int64_t dim) const { return tapestry::softmax(*this, dim); }

Tensor log_softmax(const Tensor& x, std::int64_t dim) {
  return along(kLogSoftmax, kernels::log_softmax, kernels::log_softmax_backward, x, dim);
}
Tensor Tensor::log_softmax(std::int64_t dim) const { return tapestry::log_softmax(*this, dim); }

}  // namespace tapestry
