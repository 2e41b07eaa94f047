#pragma once
// Contracts of the convolutions.
#include "tapestry/kernels/slot.h"
#include "tapestry/kernels/view.h"

namespace tapestry::kernels {

/// The shapes and options of a convolution. Its input x is (N, C, H, W), its weight (K, C / groups, R, S),
/// its output y (N, K, P, Q):
///   y[n, k, p, q] = bias[k] + sum over c, r, s of weight[k, c, r, s] x[n, c', h, w]
/// with h = p stride - padding + r dilation and the same for w. x counts as zero outside of the image, and c'
/// is c plus the first channel of k's group. `relu` replaces negative elements of y by 0 and keeps NaN; the
/// gradients are those of the sum, without it. x and y are dense, both row-major or both channels-last
/// (N, H, W, C in memory). The weight and its gradient are dense and row-major. Sums are accumulated in f32,
/// or in f64 for f64. f16 and bf16 are rounded once, at the end.
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

/// y from x, weight and bias. The bias (K) may be null.
struct Conv2dArgs {
  Conv2dShape shape;
  ConstArray x, weight, bias;
  MutableArray y;
};
inline constinit Slot<Conv2dArgs> conv2d{"conv2d"};

/// dx from dy and weight.
struct Conv2dBackwardInputArgs {
  Conv2dShape shape;
  ConstArray dy, weight;
  MutableArray dx;
};
inline constinit Slot<Conv2dBackwardInputArgs> conv2d_backward_input{"conv2d_backward_input"};

/// dweight and dbias from dy and x. One of the gradients may be null, and x if dweight is.
struct Conv2dBackwardWeightArgs {
  Conv2dShape shape;
  ConstArray dy, x;
  MutableArray dweight, dbias;
};
inline constinit Slot<Conv2dBackwardWeightArgs> conv2d_backward_weight{"conv2d_backward_weight"};

}  // namespace tapestry::kernels
