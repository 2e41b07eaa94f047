#pragma once
// Contracts of the normalisations. Statistics and sums are f32 for f32, f16 and bf16, and f64 for f64.
// Variances are taken around the mean, piece by piece, so that a large mean costs no digits. Results do not
// depend on the number of threads.
#include "tapestry/kernels/slot.h"
#include "tapestry/kernels/view.h"

namespace tapestry::kernels {

/// x and y are (n, c, l), dense. A channels-last (N, C, H, W) is described as n = N H W, l = 1.
struct BatchNormShape {
  std::int64_t n = 0, c = 0, l = 1;
};

/// The mean and the biased variance of x over n and l. Each output is (c), and null if it is not wanted.
struct BatchNormStatsArgs {
  BatchNormShape shape;
  ConstArray x;
  MutableArray mean, var, inv_std;  ///< f32, or f64 for f64
  double eps = 0;                   ///< inv_std = 1 / sqrt(var + eps)
  /// Of x's dtype, and updated to (1 - momentum) old + momentum new. The running variance uses the unbiased
  /// one.
  MutableArray running_mean, running_var;
  double momentum = 0;
};
inline constinit Slot<BatchNormStatsArgs> batch_norm_stats{"batch_norm_stats"};

/// y = (x - mean) inv_std weight + bias. weight and bias are (c), of x's dtype, and may be null.
struct BatchNormArgs {
  BatchNormShape shape;
  ConstArray x, mean, inv_std, weight, bias;
  MutableArray y;
};
inline constinit Slot<BatchNormArgs> batch_norm{"batch_norm"};

/// dweight = sum dy (x - mean) inv_std, dbias = sum dy (c, x's dtype), and dx. Each of the three may be null.
/// `training` means that mean and inv_std were computed from x; then dx includes the gradients through them.
struct BatchNormBackwardArgs {
  BatchNormShape shape;
  ConstArray dy, x, mean, inv_std, weight;
  bool training = false;
  MutableArray dx, dweight, dbias;
};
inline constinit Slot<BatchNormBackwardArgs> batch_norm_backward{"batch_norm_backward"};

/// y = (x - mean) inv_std weight + bias with the mean and inv_std = 1 / sqrt(var + eps) of each row, which
/// are stored (rows; f32, or f64 for f64). x and y are (rows, cols), dense. weight and bias (cols) may be
/// null.
struct LayerNormArgs {
  std::int64_t rows = 0, cols = 0;
  ConstArray x, weight, bias;
  double eps = 0;
  MutableArray y, mean, inv_std;
};
inline constinit Slot<LayerNormArgs> layer_norm{"layer_norm"};

/// weight may be null, and each of the outputs.
struct LayerNormBackwardArgs {
  std::int64_t rows = 0, cols = 0;
  ConstArray dy, x, mean, inv_std, weight;
  MutableArray dx, dweight, dbias;
};
inline constinit Slot<LayerNormBackwardArgs> layer_norm_backward{"layer_norm_backward"};

}  // namespace tapestry::kernels
