#pragma once
// Operations that compute what several others compute, with fewer passes over memory. Each result is that of
// the composition in its comment. Sums and activations of f16 and bf16 are rounded once, at the end, where
// the composition rounds each of its results.
#include <optional>
#include <utility>

#include "tapestry/autograd/ops/conv.h"
#include "tapestry/autograd/ops/loss.h"
#include "tapestry/core/tensor.h"

namespace tapestry {

/// Computes relu(linear(x, weight, bias)). The product applies the activation before it writes the result.
/// Shapes and errors are those of linear().
Tensor linear_relu(const Tensor& x, const Tensor& weight, const Tensor& bias = {});
/// Computes gelu(linear(x, weight, bias), tanh_approximation). The product applies the activation before it
/// writes the result. Shapes and errors are those of linear().
Tensor linear_gelu(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                   bool tanh_approximation = false);

enum class Activation : std::uint8_t { relu, gelu, gelu_tanh };

/// Computes linear(f(linear(x, weight1, bias1)), weight2, bias2) with the activation f: the feed-forward
/// network of a transformer (Vaswani et al. 2017). The first product applies f. In backward, the product that
/// computes the gradient of the hidden features multiplies it by f's derivative.
/// Shapes: x is (..., in), weight1 is (hidden, in), bias1 is (hidden) or undefined, weight2 is (out, hidden),
/// bias2 is (out) or undefined, and the result is (..., out). Throws ValueError if the shapes do not fit, and
/// TypeError or DeviceError if dtypes or devices differ.
Tensor feed_forward(const Tensor& x, const Tensor& weight1, const Tensor& bias1, const Tensor& weight2,
                    const Tensor& bias2 = {}, Activation activation = Activation::relu);

/// Returns s = x + residual, and layer_norm(s, normalized_shape, weight, bias, eps). One kernel computes
/// both, and backward adds the gradients of both in one. x and residual have the same shape, dtype and
/// device. Throws as layer_norm() does, and ValueError unless the two shapes are equal.
std::pair<Tensor, Tensor> add_layer_norm(const Tensor& x, const Tensor& residual,
                                         const Shape& normalized_shape, const Tensor& weight = {},
                                         const Tensor& bias = {}, double eps = 1e-5);
/// Returns s = x + residual, and rms_norm(s, normalized_shape, weight, eps), as add_layer_norm() does.
std::pair<Tensor, Tensor> add_rms_norm(const Tensor& x, const Tensor& residual, const Shape& normalized_shape,
                                       const Tensor& weight = {}, std::optional<double> eps = {});

/// Computes relu(batch_norm(x, ...) + residual), or relu(batch_norm(x, ...)) without a residual, in the pass
/// that normalises. Backward reads the result instead of a mask. The residual has x's shape, dtype and
/// device. Throws as batch_norm() does, and ValueError unless the two shapes are equal.
Tensor batch_norm_relu(const Tensor& x, const Tensor& running_mean, const Tensor& running_var,
                       const Tensor& weight, const Tensor& bias, bool training, double momentum = 0.1,
                       double eps = 1e-5, const Tensor& residual = {});

/// Computes cross_entropy(logits, target, params). Backward writes the gradient of the logits over the logits
/// instead of into new memory, which halves the memory of a language model's last layer. After backward the
/// elements of `logits`, and of tensors that share its memory, are the gradient. A second backward, and the
/// backward of another operation that saved the logits, then throw AutogradError, as after any change in
/// place. It has no gradients of gradients.
/// Throws as cross_entropy() does, ValueError unless the logits are contiguous, and AutogradError if they are
/// a leaf that requires gradients, or a view of one.
Tensor cross_entropy_(const Tensor& logits, const Tensor& target, const CrossEntropyParams& params = {});

/// Computes relu(conv2d(x, weight, bias, params)). The convolution applies relu before it writes the result.
/// Shapes and errors are those of conv2d().
Tensor conv2d_relu(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                   const Conv2dParams& params = {});

}  // namespace tapestry
