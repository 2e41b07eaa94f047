#pragma once
// Helpers that the normalisations and distributed::sync_batch_norm() share.
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/internal/common.h"
#include "tapestry/kernels/ops/norm.h"

namespace tapestry::autograd {

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
/// undefined. Not recorded.
inline Tensor normalize_channels(const Tensor& x, MemoryFormat format, const Tensor& mean,
                                 const Tensor& inv_std, const Tensor& weight, const Tensor& bias) {
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
                         .y = y});
  return y;
}

/// Returns a tensor that receives sums over g. A kernel writes it. If g has no elements, no kernel runs, so
/// the tensor must be zero.
inline Tensor sums_of(const Tensor& g, const Shape& sizes) {
  const TensorOptions options(g.dtype(), g.device());
  return g.numel() > 0 ? empty(sizes, options) : zeros(sizes, options);
}

/// The gradients of input, weight and bias that backward needs; the others are undefined. The kernel writes
/// them. `g` is the gradient of the output, and weight and bias have the shape `sizes`.
struct NormGradients {
  NormGradients(const Backward& b, const Tensor& g, MemoryFormat format, const Shape& sizes) {
    if (b.needs(0)) dx = empty(g.sizes(), {g.dtype(), g.device()}, format);
    if (b.needs(1)) dweight = sums_of(g, sizes);
    if (b.needs(2)) dbias = sums_of(g, sizes);
  }
  void set(Backward& b) const {
    b.set(0, dx);
    b.set(1, dweight);
    b.set(2, dbias);
  }
  Tensor dx, dweight, dbias;
};

}  // namespace tapestry::autograd
