#pragma once
// Contracts of the normalisations. Statistics and sums are f32 for f32, f16 and bf16, and f64 for f64;
// variances are taken around the mean, piece by piece, so that a large mean costs no digits; results do not
// depend on the number of threads.
#include "tapestry/kernels/slot.h"

namespace tapestry::kernels {

/// x and y (n, c, l), dense. A channels-last (N, C, H, W) comes as n = N H W, l = 1.
struct BatchNorm {
  std::int64_t n = 0, c = 0, l = 1;
  Device device;  ///< where a kernel takes its workspace
};

/// What becomes of the mean and the biased variance of x over n and l; each (c), or null if nobody wants it.
struct BatchNormStats {
  void *mean = nullptr, *var = nullptr, *inv_std = nullptr;  ///< f32, or f64 for f64
  double eps = 0;                                            ///< inv_std = 1 / sqrt(var + eps)
  /// x's dtype, changed: (1 - momentum) old + momentum new, the variance there divided by a value fewer.
  void *running_mean = nullptr, *running_var = nullptr;
  double momentum = 0;
};
inline constinit Slot<void(const BatchNorm&, const void* x, const BatchNormStats&)> batch_norm_stats{
    "batch_norm_stats"};
/// y = (x - mean) inv_std weight + bias; weight and bias (c, x's dtype) may be null.
inline constinit Slot<void(const BatchNorm&, const void* x, const void* mean, const void* inv_std,
                           const void* weight, const void* bias, void* y)>
    batch_norm{"batch_norm"};
/// dweight = sum dy (x - mean) inv_std, dbias = sum dy (c, x's dtype), dx; any of the three may be null.
/// `training`: mean and inv_std are the batch's, and dx goes through them.
inline constinit Slot<void(const BatchNorm&, const void* dy, const void* x, const void* mean,
                           const void* inv_std, const void* weight, bool training, void* dx, void* dweight,
                           void* dbias)>
    batch_norm_backward{"batch_norm_backward"};

/// x and y (rows, cols), dense: y = (x - mean) inv_std weight + bias with each row's own mean and inv_std =
/// 1 / sqrt(var + eps), which it keeps (rows; f32, or f64 for f64). weight and bias (cols) may be null.
inline constinit Slot<void(std::int64_t rows, std::int64_t cols, const void* x, const void* weight,
                           const void* bias, double eps, void* y, void* mean, void* inv_std)>
    layer_norm{"layer_norm"};
struct LayerNormBackward {
  std::int64_t rows = 0, cols = 0;
  const void *dy = nullptr, *x = nullptr, *mean = nullptr, *inv_std = nullptr,
             *weight = nullptr;                              // weight or null
  void *dx = nullptr, *dweight = nullptr, *dbias = nullptr;  // each or null
  Device device;                                             ///< where a kernel takes its workspace
};
inline constinit Slot<void(const LayerNormBackward&)> layer_norm_backward{"layer_norm_backward"};

}  // namespace tapestry::kernels
