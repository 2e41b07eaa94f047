#pragma once
// Calls of two or three layers as one operation (autograd/ops/fused.h). Each function computes what the calls
// in its comment compute, with fewer passes over memory. It makes these calls themselves where one operation
// cannot stand for them: if a layer has hooks, packed or divided weights or an adapter, or is of a derived
// class.
#include <utility>

#include "tapestry/autograd/ops/fused.h"
#include "tapestry/nn/layers/conv.h"
#include "tapestry/nn/layers/linear.h"
#include "tapestry/nn/layers/norm.h"

namespace tapestry::nn {

/// relu(layer(x)).
Tensor linear_relu(Linear& layer, const Tensor& x);
/// gelu(layer(x), tanh_approximation).
Tensor linear_gelu(Linear& layer, const Tensor& x, bool tanh_approximation = false);
/// down(f(up(x))) with the activation f.
Tensor feed_forward(Linear& up, Linear& down, const Tensor& x, Activation f);

/// relu(layer(x)).
Tensor conv2d_relu(Conv2d& layer, const Tensor& x);
/// relu(norm(x) + residual), or relu(norm(x)) without a residual.
template <int kDims>
Tensor batch_norm_relu(BatchNorm<kDims>& norm, const Tensor& x, const Tensor& residual = {});
extern template Tensor batch_norm_relu(BatchNorm<1>&, const Tensor&, const Tensor&);
extern template Tensor batch_norm_relu(BatchNorm<2>&, const Tensor&, const Tensor&);
extern template Tensor batch_norm_relu(BatchNorm<3>&, const Tensor&, const Tensor&);

/// s = x + residual, and norm(s).
std::pair<Tensor, Tensor> add_norm(LayerNorm& norm, const Tensor& x, const Tensor& residual);
std::pair<Tensor, Tensor> add_norm(RMSNorm& norm, const Tensor& x, const Tensor& residual);

}  // namespace tapestry::nn
