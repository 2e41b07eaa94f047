#pragma once
// Contracts of the losses. The slot's dtype is that of the input x. Kernels compute in the "accumulation
// dtype", which is f32 for f16 and bf16 and the input's own dtype otherwise. Class weights, per-row results
// and incoming gradients have the accumulation dtype. No kernel needs a value on the host.
#include <cstdint>

#include "tapestry/kernels/ops/index.h"
#include "tapestry/kernels/ops/pointwise.h"

namespace tapestry::kernels {

/// The inputs of a loss over classes. x (outer, classes, inner) is dense and has one row of class scores per
/// (outer, inner). A row has a target class or, in cross-entropy only, a probability for every class.
struct ClassRowsArgs {
  std::int64_t outer, classes, inner;
  ConstArray x;                          ///< logits, or log-probabilities for nll
  const std::int64_t* target = nullptr;  ///< (outer, inner)
  ConstArray probabilities;              ///< has x's shape; used if target is null
  ConstArray weight;  ///< (classes), of the accumulation dtype; null means 1 for each class
  std::int64_t ignore_index = -100;
  double smoothing = 0;
  /// An array (outer, inner, 2) of the accumulation dtype. For each row it holds the largest logit m and
  /// log(sum(exp(x - m))). The two are kept apart because adding them would lose digits of the logarithm if m
  /// is large. The forward kernel writes the array and the backward kernel reads it. It is null for nll_loss.
  MutableArray stats;
};

/// The arguments of a forward kernel. `losses` and `weights` are (outer, inner), have the accumulation dtype,
/// and are 0 for a row whose target is ignore_index. A target outside [0, classes) is reported in first_bad
/// (see ops/index.h).
struct ClassLossArgs {
  ClassRowsArgs rows;
  MutableArray losses, weights;
  BadIndexCell first_bad;
  /// One number each, of the accumulation dtype; null if not wanted. total = sum(weights), and mean =
  /// sum(losses) / total.
  MutableArray mean, total;
};
/// Let q = (1 - smoothing) target + smoothing / classes (Szegedy et al. 2016) and p = softmax(x). Then losses
/// = -sum_c weight_c q_c log(p_c). `weights` receives the weight of the target class, or 1 if the targets are
/// probabilities.
inline constinit Slot<ClassLossArgs> cross_entropy{"cross_entropy"};
/// For target t, losses = -weight_t x_t and weights = weight_t. The kernel uses neither `smoothing` nor
/// `stats`.
inline constinit Slot<ClassLossArgs> nll_loss{"nll_loss"};

/// The incoming gradient of a loss: one number per row (outer, inner) if `each_row` is set, else one number
/// for all rows. If `grad` is null, it is 1 for all rows. The kernel divides it by `divisor` unless that is
/// null. A divisor of 0, which means that no row counts, makes it 0.
struct LossGrad {
  ConstArray grad;
  bool each_row;
  ConstArray divisor;
};
/// The arguments of a backward kernel. It writes all of dx, which may be x itself.
struct ClassLossBackwardArgs {
  ClassRowsArgs rows;
  LossGrad grad;
  MutableArray dx;
};
/// Computes dx_c = grad (p_c sum_k weight_k q_k - weight_c q_c). p is recomputed from x and `stats`.
inline constinit Slot<ClassLossBackwardArgs> cross_entropy_backward{"cross_entropy_backward"};
/// dx receives the gradient of the probabilities, -grad (1 - smoothing) weight_c log(p_c).
inline constinit Slot<ClassLossBackwardArgs> cross_entropy_target_backward{"cross_entropy_target_backward"};
inline constinit Slot<ClassLossBackwardArgs> nll_loss_backward{"nll_loss_backward"};

/// The pointwise operation (x - target)^2 (see pointwise.h).
struct SquaredError : Pointwise<"squared_error", 3, kFloats> {
  template <class M, class C>
  TAPESTRY_FORMULA C value(C x, C target) {
    return (x - target) * (x - target);
  }
};
/// The pointwise operation dx = scale (x - target) g (see pointwise.h).
struct SquaredErrorBackward : Pointwise<"squared_error_backward", 4, kFloats, 1> {
  template <class M, class C>
  TAPESTRY_FORMULA C value(C x, C target, C g, C scale) {
    return scale * (x - target) * g;
  }
};
/// With d = |x - target|: scale d^2 / 2 where d < limit, else scale limit (d - limit / 2) (Huber 1964). With
/// a = min(d, limit) both cases are scale a (d - a / 2), in which no term is NaN if d is infinite.
struct HuberError : Pointwise<"huber_error", 3, kFloats, 2> {
  template <class M, class C>
  TAPESTRY_FORMULA C value(C x, C target, C limit, C scale) {
    const C d = M::abs(x - target), a = d > limit ? limit : d;
    return scale * (a * (d - a / 2));
  }
};
/// The gradient of x, dx = scale g (x - target), where x - target is limited to [-limit, limit].
struct HuberErrorBackward : Pointwise<"huber_error_backward", 4, kFloats, 2> {
  template <class M, class C>
  TAPESTRY_FORMULA C value(C x, C target, C g, C limit, C scale) {
    const C d = x - target, low = d < -limit ? -limit : d;
    return scale * g * (low > limit ? limit : low);
  }
};
using ErrorRows = RowList<SquaredError, SquaredErrorBackward, HuberError, HuberErrorBackward>;

/// Binary cross-entropy of a probability x and a target. The logarithms are limited to -100 and the divisor
/// of the gradient to 1e-12, as in PyTorch, so that x = 0 and x = 1 give finite losses and gradients.
struct BinaryCrossEntropy : Binary<"binary_cross_entropy", Takes::floats> {
  static constexpr bool kElementary = true;
  template <class C>
  TAPESTRY_FORMULA C limited(C log) {
    return select(log < -100, C(-100), log);  // keeps NaN
  }
  template <class M, class C>
  TAPESTRY_FORMULA C value(C x, C target) {
    return (target - 1) * limited(M::log1p(-x)) - target * limited(M::log(x));
  }
  template <class M, class C>
  TAPESTRY_FORMULA C gradient_a(C dy, C x, C target) {
    const C divisor = (1 - x) * x;
    const C least = C(1e-12f);  // PyTorch's limit is f32, too
    return dy * (x - target) / select(divisor < least, least, divisor);
  }
  template <class M, class C>
  TAPESTRY_FORMULA C gradient_b(C dy, C x, C) {
    return dy * (limited(M::log1p(-x)) - limited(M::log(x)));
  }
};
/// Binary cross-entropy of a logit x and a target: log(1 + e^x) - target x. It is computed as log(1 + e^-|x|)
/// + (1 - target) x, or - target x for x < 0, which cannot overflow. Where the factor of x is 0, an infinite
/// x costs 0.
struct BinaryCrossEntropyWithLogits : Binary<"binary_cross_entropy_with_logits", Takes::floats> {
  static constexpr bool kElementary = true;
  template <class M, class C>
  TAPESTRY_FORMULA C value(C x, C target) {
    const C factor = x < 0 ? -target : 1 - target;
    return (factor == 0 ? C(0) : factor * x) + M::log1p_of_unit(M::exp_of_negative(-M::abs(x)));  // keeps NaN
  }
  template <class M, class C>
  TAPESTRY_FORMULA C gradient_a(C dy, C x, C target) {
    return dy * (M::sigmoid(x) - target);
  }
  template <class M, class C>
  TAPESTRY_FORMULA C gradient_b(C dy, C x, C) {
    return -dy * x;
  }
};
using BinaryLosses = RowList<BinaryCrossEntropy, BinaryCrossEntropyWithLogits>;

/// Computes out = sum((x - target)^2) / divisor, which is one number. x and target are dense and have n
/// elements. All arrays have the slot's dtype.
struct SumSquaredErrorArgs {
  std::int64_t n;
  ConstArray x, target;
  MutableArray out;
  double divisor;
};
inline constinit Slot<SumSquaredErrorArgs> sum_squared_error{"sum_squared_error"};

}  // namespace tapestry::kernels
