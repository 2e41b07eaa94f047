#include "tapestry/autograd/ops/softmax.h"

#include "tapestry/autograd/internal/autocast.h"
#include "tapestry/autograd/internal/record_observer.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/autograd/tape.h"
#include "tapestry/kernels/ops/softmax.h"

namespace tapestry {
namespace {

using autograd::Backward;
using autograd::Grad;
using autograd::Op;

const Op kSoftmax("softmax", Grad::twice, kFloats);
const Op kLogSoftmax("log_softmax", Grad::twice, kFloats);

kernels::SoftmaxShape shape_of(const Shape& sizes, int dim) {
  kernels::SoftmaxShape s{1, 1, 1};
  for (int i = 0; i < sizes.size(); ++i) (i < dim ? s.outer : i == dim ? s.n : s.inner) *= sizes[i];
  return s;
}

using GradientByOperations = Tensor (*)(const Tensor& g, const Tensor& y, int dim);
// A 0-d tensor is a row of one element.
Tensor row_sums(const Tensor& x, int dim) { return x.dim() == 0 ? x : sum(x, dim, true); }

Tensor along(const Op& op, const decltype(kernels::softmax)& forward,
             const decltype(kernels::softmax_backward)& backward, const GradientByOperations& gradient,
             const Tensor& x, std::int64_t dim) {
  detail::check_defined(op.name, x);
  op.check_dtype(x.dtype());
  const int d = wrap_dim(op.name, dim, x.dim());
  const kernels::SoftmaxShape s = shape_of(x.sizes(), d);
  const Tensor y = empty(x.sizes(), TensorOptions(x.dtype(), x.device()));
  {
    const NoGradGuard no_grad;
    forward(x.device(), x.dtype(), {.shape = s, .x = x.contiguous(), .y = y});
  }
  const autograd::CallNote note({.dims = 1u << d});
  if (autograd::recording(x)) {
    autograd::record(op, y, {&x}, [s, d, &backward, gradient, y = autograd::save_output(y)](Backward& b) {
      const Tensor saved = b.saved(y);
      if (b.create_graph()) return b.set(0, gradient(b.grad(), saved, d));
      const Tensor g = b.grad().contiguous();
      const Tensor dx = empty(saved.sizes(), TensorOptions(saved.dtype(), saved.device()));
      backward(saved.device(), saved.dtype(), {.shape = s, .y = saved, .dy = g, .dx = dx});
      b.set(0, dx);
    });
  }
  return y;
}

}  // namespace

Tensor softmax(const Tensor& x, std::int64_t dim) {
  if (const autograd::Autocast cast(kSoftmax, x); cast) return softmax(cast(x), dim);
  return along(
      kSoftmax, kernels::softmax, kernels::softmax_backward,
      [](const Tensor& g, const Tensor& y, int d) { return y * (g - row_sums(g * y, d)); }, x, dim);
}
Tensor Tensor::softmax(std::int64_t dim) const { return tapestry::softmax(*this, dim); }

Tensor log_softmax(const Tensor& x, std::int64_t dim) {
  if (const autograd::Autocast cast(kLogSoftmax, x); cast) return log_softmax(cast(x), dim);
  return along(
      kLogSoftmax, kernels::log_softmax, kernels::log_softmax_backward,
      [](const Tensor& g, const Tensor& y, int d) { return g - exp(y) * row_sums(g, d); }, x, dim);
}
Tensor Tensor::log_softmax(std::int64_t dim) const { return tapestry::log_softmax(*this, dim); }

}  // namespace tapestry
