#pragma once
// Contracts of the convolutions.
#include "tapestry/kernels/slot.h"

namespace tapestry::kernels {

/// x (N, C, H, W), weight (K, C / groups, R, S), y (N, K, P, Q):
///   y[n, k, p, q] = bias[k] + sum over c, r, s of weight[k, c, r, s] x[n, c', h, w],
/// h = p stride - padding + r dilation, w likewise, x zero outside; c' = c plus the offset of k's group. With
/// `relu` y is what is not negative of that, else 0 (NaN stays); gradients are those of the sum, without it.
/// x and y are dense, both row-major or both channels-last (N, H, W, C in memory); the weight is dense
/// row-major, and so is its gradient. Sums are accumulated in f32, for f64 in f64; f16 and bf16 are rounded
/// once, at the end.
struct Conv2d {
  std::int64_t n = 0, c = 0, h = 0, w = 0;
  std::int64_t k = 0, r = 0, s = 0;
  std::int64_t p = 0, q = 0;
  std::int64_t stride_h = 1, stride_w = 1, padding_h = 0, padding_w = 0, dilation_h = 1, dilation_w = 1;
  std::int64_t groups = 1;
  bool channels_last = false;
  bool relu = false;
  Device device;  ///< where a kernel takes its workspace

  friend bool operator==(const Conv2d&, const Conv2d&) = default;
};

/// y from x, weight and bias (K), which may be null.
inline constinit Slot<void(const Conv2d&, const void* x, const void* weight, const void* bias, void* y)>
    conv2d{"conv2d"};
/// dx from dy and weight.
inline constinit Slot<void(const Conv2d&, const void* dy, const void* weight, void* dx)>
    conv2d_backward_input{"conv2d_backward_input"};
/// dweight and dbias, of which one may be null, from dy and x (which may be null with dweight).
inline constinit Slot<void(const Conv2d&, const void* dy, const void* x, void* dweight, void* dbias)>
    conv2d_backward_weight{"conv2d_backward_weight"};

}  // namespace tapestry::kernels
