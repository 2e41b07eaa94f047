#include "tapestry/nn/layers/fused.h"

#include <typeinfo>

#include "tapestry/autograd/ops/elementwise.h"

namespace tapestry::nn {
namespace {

// True if a call of the layer is a call of its operation and nothing else.
template <class Layer>
bool is_plain(const Layer& layer) {
  return typeid(layer) == typeid(Layer) && !layer.has_hooks();
}
// An input that does not fit goes to the layer, whose error names the layer's path.
bool is_plain(const Linear& layer, const Tensor& x) {
  return is_plain(layer) && !layer.packed_weight().defined() && x.defined() && x.dim() > 0 &&
         x.size(-1) == layer.weight->size(1);
}

Tensor activated(Activation f, const Tensor& x) {
  return f == Activation::relu ? relu(x) : gelu(x, f == Activation::gelu_tanh);
}

template <class Norm, class F>
std::pair<Tensor, Tensor> add_norm_by(Norm& norm, const Tensor& x, const Tensor& residual, const F& fused) {
  // An addition that broadcasts or promotes is not the kernels' addition.
  if (is_plain(norm) && x.defined() && residual.defined() && x.sizes() == residual.sizes() &&
      x.dtype() == residual.dtype() && (!norm.weight.defined() || norm.weight->dtype() == x.dtype()))
    return fused();
  Tensor sum = x + residual, y = norm(sum);
  return {std::move(sum), std::move(y)};
}

}  // namespace

Tensor linear_relu(Linear& layer, const Tensor& x) {
  if (!is_plain(layer, x)) return relu(layer(x));
  return tapestry::linear_relu(x, layer.weight, layer.bias);
}

Tensor linear_gelu(Linear& layer, const Tensor& x, bool tanh_approximation) {
  if (!is_plain(layer, x)) return gelu(layer(x), tanh_approximation);
  return tapestry::linear_gelu(x, layer.weight, layer.bias, tanh_approximation);
}

Tensor feed_forward(Linear& up, Linear& down, const Tensor& x, Activation f) {
  const bool plain = is_plain(up, x) && is_plain(down) && !down.packed_weight().defined() &&
                     down.weight->size(1) == up.weight->size(0);
  if (!plain) return down(activated(f, up(x)));
  return tapestry::feed_forward(x, up.weight, up.bias, down.weight, down.bias, f);
}

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
