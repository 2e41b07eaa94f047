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
  return is_plain(layer) && !layer.packed_weight().defined() && !layer.divided_forward && x.defined() &&
         x.dim() > 0 && x.size(-1) == layer.weight->size(1);
}

Tensor activated(Activation f, const Tensor& x) {
  return f == Activation::relu ? relu(x) : gelu(x, f == Activation::gelu_tanh);
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
                     !down.divided_forward && down.weight->size(1) == up.weight->size(0);
  if (!plain) return down(activated(f, up(x)));
  return tapestry::feed_forward(x, up.weight, up.bias, down.weight, down.bias, f);
}

Tensor conv2d_relu(Conv2d& layer, const Tensor& x) {
  const auto& o = layer.options;
  const bool fits = x.defined() && (x.dim() == 3 || x.dim() == 4) && x.size(-3) == o.in_channels;
  if (!is_plain(layer) || !fits || o.padding_mode != PadMode::constant) return relu(layer(x));
  return tapestry::conv2d_relu(x, layer.weight, layer.bias, {o.stride, o.padding, o.dilation, o.groups});
}

template <int kDims>
Tensor batch_norm_relu(BatchNorm<kDims>& norm, const Tensor& x, const Tensor& residual) {
  // An addition that broadcasts or promotes is not the kernel's addition.
  const bool fits = !residual.defined() || (x.defined() && x.sizes() == residual.sizes() &&
                                            x.dtype() == residual.dtype() && x.device() == residual.device());
  if (is_plain(norm) && fits) try {
      return norm.forward_relu(x, residual);
    } catch (Error& error) {
      norm.add_place(error);
      throw;
    }
  const Tensor y = norm(x);
  return relu(residual.defined() ? y + residual : y);
}
template Tensor batch_norm_relu(BatchNorm<1>&, const Tensor&, const Tensor&);
template Tensor batch_norm_relu(BatchNorm<2>&, const Tensor&, const Tensor&);
template Tensor batch_norm_relu(BatchNorm<3>&, const Tensor&, const Tensor&);

}  // namespace tapestry::nn
