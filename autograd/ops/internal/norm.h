#pragma once
// Helpers that the normalisations and distributed::sync_batch_norm() share.
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/internal/common.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/kernels/ops/norm.h"

namespace tapestry::autograd {

/// Throws ValueError unless x's shape ends in `normalized_shape`, and TypeError, DeviceError or ValueError
/// unless the operands, which may be undefined, have that shape and x's dtype and device.
void check_normalized(const Op& op, const Tensor& x, const Shape& normalized_shape, const Tensor& weight,
                      const Tensor& bias = {});

/// The bits of x's last dimensions, as many as `normalized_shape` has.
inline unsigned last_dims(const Tensor& x, const Shape& normalized_shape) {
  return ((1u << normalized_shape.size()) - 1) << (x.dim() - normalized_shape.size());
}

/// The shape that batch norm's kernels take for x, a tensor of shape (N, C, ...) that is dense in `format`.
inline kernels::BatchNormShape batch_norm_shape(const Tensor& x, MemoryFormat format) {
  kernels::BatchNormShape s;
  s.n = x.size(0), s.c = x.size(1);
  for (int d = 2; d < x.dim(); ++d) s.l *= x.size(d);
  if (format == MemoryFormat::channels_last) s.n *= s.l, s.l = 1;
  return s;
}

/// Throws unless the operand `t`, which messages call `what`, is undefined, or is a vector with one element
/// per channel of x and has x's dtype and device.
inline void check_per_channel(const char* op, const Tensor& x, const Tensor& t, const char* what) {
  check_matches(op, x, t, what);
  check_vector(op, t, what, x.size(1));
}

/// Returns (x - mean) * inv_std * weight + bias, where the other operands have one element per channel of x.
/// The result has x's dtype and the layout `format`, in which x must be dense. `weight` and `bias` may be
/// undefined. Then `residual` is added, which is like x or undefined, and `relu` is applied. Not recorded.
inline Tensor normalize_channels(const Tensor& x, MemoryFormat format, const Tensor& mean,
                                 const Tensor& inv_std, const Tensor& weight, const Tensor& bias,
                                 const Tensor& residual = {}, bool relu = false) {
  const Tensor y = empty(x.sizes(), {x.dtype(), x.device()}, format);
  const Tensor scale = contiguous_or_undefined(weight), shift = contiguous_or_undefined(bias);
  if (y.numel() > 0)
    kernels::batch_norm(x.device(), x.dtype(),
                        {.shape = batch_norm_shape(x, format),
                         .x = x,
                         .mean = mean,
                         .inv_std = inv_std,
                         .weight = scale,
                         .bias = shift,
                         .y = y,
                         .residual = residual,
                         .relu = relu});
  return y;
}

/// Returns a tensor that receives sums over g. A kernel writes it. If g has no elements, no kernel runs, so
/// the tensor must be zero.
inline Tensor sums_of(const Tensor& g, const Shape& sizes, DType dtype) {
  const TensorOptions options(dtype, g.device());
  return g.numel() > 0 ? empty(sizes, options) : zeros(sizes, options);
}
inline Tensor sums_of(const Tensor& g, const Shape& sizes) { return sums_of(g, sizes, g.dtype()); }

/// The gradients of input, weight and bias that backward needs; the others are undefined. The kernel writes
/// them. `g` is the gradient of the output, and weight and bias have the shape `sizes` and the dtype
/// `parameters`.
struct NormGradients {
  NormGradients(const Backward& b, const Tensor& g, MemoryFormat format, const Shape& sizes,
                DType parameters) {
    if (b.needs(0)) dx = empty(g.sizes(), {g.dtype(), g.device()}, format);
    if (b.needs(1)) dweight = sums_of(g, sizes, parameters);
    if (b.needs(2)) dbias = sums_of(g, sizes, parameters);
  }
  NormGradients(const Backward& b, const Tensor& g, MemoryFormat format, const Shape& sizes)
      : NormGradients(b, g, format, sizes, g.dtype()) {}
  void set(Backward& b) const {
    b.set(0, dx);
    b.set(1, dweight);
    b.set(2, dbias);
  }
  Tensor dx, dweight, dbias;
};

/// The gradient of x in a pass with create_graph, where the result of a normalisation is (x - mean(x)) /
/// sqrt(var(x) + eps) over the dimensions `dims`, and g is the gradient of that result (Ioffe and Szegedy
/// 2015).
struct NormalizationByOperations {
  NormalizationByOperations(const Tensor& x, const Dims& over, double eps)
      : dims(over),
        center(sub(x, mean(x, over, true))),
        inv_std(rsqrt(add(mean(square(center), over, true), eps))),
        result(mul(center, inv_std)) {}
  Tensor gradient(const Tensor& g) const {
    return inv_std * (g - mean(g, dims, true) - result * mean(mul(g, result), dims, true));
  }
  Dims dims;
  Tensor center, inv_std, result;
};

/// Sets the gradients in a pass with create_graph. `result` is the normalised input, and `dx()` computes the
/// gradient of the input. Weight and bias have the shape `sizes`, and their gradients are sums over `dims`.
/// An operation without a bias has 2 inputs. `given` is the gradient of the normalised input times weight
/// plus bias, if that is not b.grad().
template <class F>
void set_by_operations(Backward& b, const Tensor& result, const F& dx, const Dims& dims, const Shape& sizes,
                       int inputs = 3, const Tensor& given = {}) {
  const Tensor& g = given.defined() ? given : b.grad();
  const auto summed = [&](const Tensor& t) { return reshape(dims.empty() ? t : sum(t, dims), sizes); };
  if (b.needs(0)) b.set(0, dx());
  if (b.needs(1)) b.set(1, summed(g * result));
  if (inputs > 2 && b.needs(2)) b.set(2, summed(g));
}

}  // namespace tapestry::autograd
