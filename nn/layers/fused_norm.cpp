#include <typeinfo>

#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/fused.h"
#include "tapestry/nn/layers/fused.h"

namespace tapestry::nn {
namespace {

template <class Norm, class F>
std::pair<Tensor, Tensor> add_norm_by(Norm& norm, const Tensor& x, const Tensor& residual, const F& fused) {
  // A derived layer may do more than its operation, and an addition that broadcasts or promotes is not the
  // kernels' addition.
  const bool plain = typeid(norm) == typeid(Norm) && !norm.has_hooks();
  if (plain && x.defined() && residual.defined() && x.sizes() == residual.sizes() &&
      x.dtype() == residual.dtype() && (!norm.weight.defined() || norm.weight->dtype() == x.dtype()))
    return fused();
  Tensor sum = x + residual, y = norm(sum);
  return {std::move(sum), std::move(y)};
}

}  // namespace

std::pair<Tensor, Tensor> add_norm(LayerNorm& norm, const Tensor& x, const Tensor& residual) {
  return add_norm_by(norm, x, residual, [&] {
    return add_layer_norm(x, residual, norm.options.normalized_shape, norm.weight, norm.bias,
                          norm.options.eps);
  });
}

std::pair<Tensor, Tensor> add_norm(RMSNorm& norm, const Tensor& x, const Tensor& residual) {
  return add_norm_by(norm, x, residual, [&] {
    return add_rms_norm(x, residual, norm.options.normalized_shape, norm.weight, norm.options.eps);
  });
}

}  // namespace tapestry::nn
