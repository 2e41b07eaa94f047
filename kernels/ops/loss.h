#pragma once
// Contracts of the losses. Slots go by the dtype of the input. Kernels compute in the "accumulation dtype",
// which is f32 for f16 and bf16 and the input's own dtype otherwise. Class weights, per-row results and
// incoming gradients have the accumulation dtype. No kernel needs a value on the host.
#include <cstdint>

#include "tapestry/kernels/ops/index.h"
#include "tapestry/kernels/ops/pointwise.h"

namespace tapestry::kernels {

/// Dense rows of class scores x (outer, classes, inner), one per (outer, inner). A row has a target class or,
/// in cross-entropy only, a probability for every class.
struct ClassRowsArgs {
  std::int64_t outer, classes, inner;
  ConstArray x;                          ///< logits, or log-probabilities for nll
  const std::int64_t* target = nullptr;  ///< (outer, inner)
  ConstArray probabilities;              ///< like x, where target is null
  ConstArray weight;  ///< (classes), of the accumulation dtype; null means 1 for each class
  std::int64_t ignore_index = -100;
  double smoothing = 0;
  /// (outer, inner, 2), of the accumulation dtype: the largest logit m and log(sum(exp(x - m))) of each row.
  /// The two are kept apart because their sum loses the digits of the second beside large logits. Forward
  /// writes them, backward reads them. Null for nll.
  MutableArray stats;
};

/// Forward. `losses` and `weights` are (outer, inner), of the accumulation dtype, and 0 for an ignored row. A
/// target outside [0, classes) is reported in first_bad (see index.h).
struct ClassLossArgs {
  ClassRowsArgs rows;
  MutableArray losses, weights;
  std::int64_t* first_bad;
};
/// With q = (1 - smoothing) target + smoothing / classes (Szegedy et al. 2016) and p = softmax(x):
/// losses = -sum_c weight_c q_c log(p_c). `weights` gets the weight of the target class, or 1 where the
/// targets are probabilities.
inline constinit Slot<ClassLossArgs> cross_entropy{"cross_entropy"};
/// losses = -weight_t x_t and weights = weight_t for target t. Uses neither smoothing nor stats.
inline constinit Slot<ClassLossArgs> nll_loss{"nll_loss"};

/// The gradient of a loss: one for each row (outer, inner), or one number for all rows. It is divided by
/// `divisor` unless that is null.
struct LossGrad {
  ConstArray grad;
  bool each_row;
  ConstArray divisor;
};
/// Backward. Writes all of dx, which is like x.
struct ClassLossBackwardArgs {
  ClassRowsArgs rows;
  LossGrad grad;
  MutableArray dx;
};
/// dx = grad (p sum_c weight_c q_c - weight q). p is not stored.
inline constinit Slot<ClassLossBackwardArgs> cross_entropy_backward{"cross_entropy_backward"};
/// dx receives the gradient of the probabilities, -grad (1 - smoothing) weight_c log(p_c).
inline constinit Slot<ClassLossBackwardArgs> cross_entropy_target_backward{"cross_entropy_target_backward"};
inline constinit Slot<ClassLossBackwardArgs> nll_loss_backward{"nll_loss_backward"};

/// total = sum(weights) and mean = sum(losses) / total, one number each. Everything has the slot's dtype,
/// which is f32 or f64.
struct WeightedMeanArgs {
  std::int64_t n;
  ConstArray losses, weights;  // (n)
  MutableArray mean, total;
};
inline constinit Slot<WeightedMeanArgs> weighted_mean{"weighted_mean"};

/// (x - target)^2
struct SquaredError : Pointwise<"squared_error", 3, kFloats> {
  template <class M, class C>
  TAPESTRY_FORMULA C value(C x, C target) {
    return (x - target) * (x - target);
  }
};
/// dx = scale (x - target) g
struct SquaredErrorBackward : Pointwise<"squared_error_backward", 4, kFloats, 1> {
  template <class M, class C>
  TAPESTRY_FORMULA C value(C x, C target, C g, C scale) {
    return scale * (x - target) * g;
  }
};
using ErrorRows = RowList<SquaredError, SquaredErrorBackward>;
/// out = sum((x - target)^2) / divisor, one number. x and target are dense with n elements. Everything has
/// the slot's dtype.
struct SumSquaredErrorArgs {
  std::int64_t n;
  ConstArray x, target;
  MutableArray out;
  double divisor;
};
inline constinit Slot<SumSquaredErrorArgs> sum_squared_error{"sum_squared_error"};

}  // namespace tapestry::kernels
