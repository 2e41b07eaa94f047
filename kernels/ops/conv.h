#pragma once
// Contracts of the convolutions. For all slots in this file:
//   Shapes: x is (N, C, H, W), weight is (K, C / groups, R, S), bias is (K), y is (N, K, P, Q).
//   Layout: x and y are dense, both row-major or both channels-last (N, H, W, C in memory).
//   The weight is dense and row-major. A gradient has the shape and layout of its tensor.
//   Dtypes: all arrays have the slot's dtype, which is floating.
//   Accumulation: f32, or f64 for f64. f16 and bf16 are rounded once, at the end.
#include "tapestry/kernels/slot.h"
#include "tapestry/kernels/view.h"

namespace tapestry::kernels {

/// The shapes and options of a convolution:
///   y[n, k, p, q] = bias[k] + sum over c, r, s of weight[k, c, r, s] x[n, c', h, w]
/// Here h = p stride_h - padding_h + r dilation_h, and w is computed from q and s in the same way. The sum
/// runs over the C / groups channels of k's group, and c' is c plus the first channel of that group. x counts
/// as zero outside the image. `relu` replaces negative elements of y by 0 and keeps NaN. The gradients ignore
/// `relu`: they are the gradients of the sum.
struct Conv2dShape {
  std::int64_t n = 0, c = 0, h = 0, w = 0;
  std::int64_t k = 0, r = 0, s = 0;
  std::int64_t p = 0, q = 0;
  std::int64_t stride_h = 1, stride_w = 1, padding_h = 0, padding_w = 0, dilation_h = 1, dilation_w = 1;
  std::int64_t groups = 1;
  bool channels_last = false;
  bool relu = false;

  friend bool operator==(const Conv2dShape&, const Conv2dShape&) = default;
};

/// Computes y from x, weight and bias. The bias may be null.
struct Conv2dArgs {
  Conv2dShape shape;
  ConstArray x, weight, bias;
  MutableArray y;
};
inline constinit Slot<Conv2dArgs> conv2d{"conv2d"};

/// Computes dx from dy and weight.
struct Conv2dBackwardInputArgs {
  Conv2dShape shape;
  ConstArray dy, weight;
  MutableArray dx;
};
inline constinit Slot<Conv2dBackwardInputArgs> conv2d_backward_input{"conv2d_backward_input"};

/// Computes dweight and dbias from dy and x. Either gradient may be null. If dweight is null, x may be null
/// too.
struct Conv2dBackwardWeightArgs {
  Conv2dShape shape;
  ConstArray dy, x;
  MutableArray dweight, dbias;
};
inline constinit Slot<Conv2dBackwardWeightArgs> conv2d_backward_weight{"conv2d_backward_weight"};

}  // namespace tapestry::kernels
