#pragma once
// Contracts of the normalisations. For all slots in this file:
//   Layout: all arrays are dense.
//   Dtypes: x, y, weight, bias, the running statistics and their gradients have the slot's dtype, which is
//   floating. mean, var and inv_std have the accumulation dtype. On CPUs, so may the weight, the bias, the
//   running statistics and their gradients in the slots of batch normalisation.
//   Accumulation: f32, or f64 for f64. Variances are computed around the mean, piece by piece, so a large
//   mean costs no digits. Results do not depend on the number of threads.
#include "tapestry/kernels/slot.h"
#include "tapestry/kernels/view.h"

namespace tapestry::kernels {

/// x and y are (n, c, l). A channels-last (N, C, H, W) tensor is described by n = N H W and l = 1.
struct BatchNormShape {
  std::int64_t n = 0, c = 0, l = 1;
};

/// Computes the mean and the biased variance of x over n and l. Every output has shape (c) and may be null.
struct BatchNormStatsArgs {
  BatchNormShape shape;
  ConstArray x;
  MutableArray mean, var, inv_std;  ///< inv_std = 1 / sqrt(var + eps)
  double eps = 0;
  /// The kernel replaces each running statistic by (1 - momentum) old + momentum new. The running variance
  /// uses the unbiased variance of x.
  MutableArray running_mean, running_var;
  double momentum = 0;
};
inline constinit Slot<BatchNormStatsArgs> batch_norm_stats{"batch_norm_stats"};

/// Computes y = (x - mean) inv_std weight + bias. weight and bias are (c) and may be null. Then it adds
/// `residual`, which has x's shape, unless that is null. Then it replaces negative elements by 0 if `relu` is
/// set, and keeps NaN.
struct BatchNormArgs {
  BatchNormShape shape;
  ConstArray x, mean, inv_std, weight, bias;
  MutableArray y;
  ConstArray residual;
  bool relu = false;
};
inline constinit Slot<BatchNormArgs> batch_norm{"batch_norm"};

/// Computes dx (n, c, l), dweight (c) = sum dy (x - mean) inv_std, and dbias (c) = sum dy. Each of the three
/// may be null. `training` means that mean and inv_std were computed from x. Then dx includes the gradients
/// through them. If `relu_y` is not null, it is the result y of a forward pass with `relu`, and dy counts as
/// 0 where y <= 0. `dresidual` receives that gradient, dy where it counts, unless it is null.
struct BatchNormBackwardArgs {
  BatchNormShape shape;
  ConstArray dy, x, mean, inv_std, weight;
  bool training = false;
  MutableArray dx, dweight, dbias;
  ConstArray relu_y;
  MutableArray dresidual;
};
inline constinit Slot<BatchNormBackwardArgs> batch_norm_backward{"batch_norm_backward"};

/// Computes y = (x - mean) inv_std weight + bias, with the mean and inv_std = 1 / sqrt(var + eps) of each
/// row. The kernel stores mean and inv_std.
///   Shapes: x and y are (rows, cols), mean and inv_std are (rows), weight and bias are (cols).
///   weight and bias may be null.
/// If `residual` is not null, the kernel first stores x + residual in `sum`, rounded to the dtype, and `sum`
/// takes the place of x. Both have x's shape.
struct LayerNormArgs {
  std::int64_t rows = 0, cols = 0;
  ConstArray x, weight, bias;
  double eps = 0;
  MutableArray y, mean, inv_std;
  ConstArray residual;
  MutableArray sum;
};
inline constinit Slot<LayerNormArgs> layer_norm{"layer_norm"};

/// Computes dx (rows, cols), dweight (cols) and dbias (cols). weight and each of the outputs may be null.
/// dsum (rows, cols) is added to dx unless it is null: the gradient that reaches x on another way.
struct LayerNormBackwardArgs {
  std::int64_t rows = 0, cols = 0;
  ConstArray dy, x, mean, inv_std, weight;
  MutableArray dx, dweight, dbias;
  ConstArray dsum;
};
inline constinit Slot<LayerNormBackwardArgs> layer_norm_backward{"layer_norm_backward"};

/// RMS normalisation is layer normalisation with 0 in the place of the mean: y = x inv_rms weight, where
/// inv_rms = 1 / sqrt(mean(x^2) + eps) of each row is stored in inv_std. mean, bias and dbias must be null.
inline constinit Slot<LayerNormArgs> rms_norm{"rms_norm"};
inline constinit Slot<LayerNormBackwardArgs> rms_norm_backward{"rms_norm_backward"};

/// The shape of group normalisation. x and y are (n, c, l), or (n, l, c) if channels_last. Group g has the
/// channels [g c / groups, (g + 1) c / groups); `groups` divides c.
struct GroupNormShape {
  std::int64_t n = 0, c = 0, l = 1, groups = 1;
  bool channels_last = false;
};

/// Computes y = (x - mean) inv_std weight + bias, with the mean and inv_std = 1 / sqrt(var + eps) of the
/// elements of each group. The kernel stores mean and inv_std and, unless it is null, the biased var.
///   Shapes: mean, inv_std and var are (n, groups), weight and bias are (c).
///   weight and bias may be null.
struct GroupNormArgs {
  GroupNormShape shape;
  ConstArray x, weight, bias;
  double eps = 0;
  MutableArray y, mean, inv_std, var;
};
inline constinit Slot<GroupNormArgs> group_norm{"group_norm"};

/// Computes dx like x, dweight (c) and dbias (c). weight and each of the outputs may be null.
struct GroupNormBackwardArgs {
  GroupNormShape shape;
  ConstArray dy, x, mean, inv_std, weight;
  MutableArray dx, dweight, dbias;
};
inline constinit Slot<GroupNormBackwardArgs> group_norm_backward{"group_norm_backward"};

}  // namespace tapestry::kernels
