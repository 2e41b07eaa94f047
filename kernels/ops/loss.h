#pragma once
// Losses. Slots go by the dtype of the input; "wide" is f32 for f16 and bf16, else that dtype: what is
// computed in, and the type of class weights, per-row results and incoming gradients. Nothing here needs a
// value on the host.
#include <cstdint>

#include "tapestry/kernels/ops/index.h"
#include "tapestry/kernels/slot.h"
#include "tapestry/kernels/view.h"

namespace tapestry::kernels {

/// Rows of class scores x (outer, classes, inner), dense; a row is one (outer, inner). Each has a target
/// class, or (cross-entropy) a probability for every class.
struct ClassLoss {
  std::int64_t outer, classes, inner;
  const void* x;                         // logits, or log-probabilities for nll
  const std::int64_t* target = nullptr;  // (outer, inner)
  const void* probabilities = nullptr;   // like x, where target is null
  const void* weight = nullptr;          // (classes), wide; null: all 1
  std::int64_t ignore_index = -100;
  double smoothing = 0;
  /// (outer, inner, 2), wide: the largest logit m and log(sum(exp(x - m))). Apart, because their sum loses
  /// the small one beside large logits. Written by forward, read by backward.
  void* stats = nullptr;
};
/// The gradient that reaches a loss: one for each row (outer, inner), or one number for all, over `divisor`
/// if not null.
struct LossGrad {
  const void* grad;
  bool each_row;
  const void* divisor;
};

/// With q = (1 - smoothing) target + smoothing / classes (Szegedy et al. 2016) and p = softmax(x):
/// losses = -sum_c weight_c q_c log(p_c); weights = weight of the target class, 1 with probabilities; both
/// (outer, inner), wide, and 0 for a row to ignore. A target outside [0, classes) is reported in first_bad
/// (see index.h).
inline constinit Slot<void(const ClassLoss&, void* losses, void* weights, std::int64_t* first_bad)>
    cross_entropy{"cross_entropy"};
/// dx = grad (p sum_c weight_c q_c - weight q), written whole, without storing p.
inline constinit Slot<void(const ClassLoss&, const LossGrad&, void* dx)> cross_entropy_backward{
    "cross_entropy_backward"};
/// The gradient of the probabilities, like x: -grad (1 - smoothing) weight_c log(p_c).
inline constinit Slot<void(const ClassLoss&, const LossGrad&, void* dtarget)> cross_entropy_target_backward{
    "cross_entropy_target_backward"};

/// losses = -weight_t x_t for target t; weights and bad targets as above. No smoothing, no stats.
inline constinit Slot<void(const ClassLoss&, void* losses, void* weights, std::int64_t* first_bad)> nll_loss{
    "nll_loss"};
/// dx, written whole.
inline constinit Slot<void(const ClassLoss&, const LossGrad&, void* dx)> nll_loss_backward{
    "nll_loss_backward"};

/// total = sum(weights), mean = sum(losses) / total: one number each, of the slot's dtype, as are the n
/// inputs. Full floats only.
inline constinit Slot<void(std::int64_t n, const void* losses, const void* weights, void* mean, void* total)>
    weighted_mean{"weighted_mean"};

/// out = (x - t)^2
inline constinit Slot<void(const Elementwise<3>&)> squared_error{"squared_error"};
/// out = sum((x - t)^2) / divisor, one number; x and t dense, n elements, all of the slot's dtype.
inline constinit Slot<void(std::int64_t n, const void* x, const void* t, void* out, double divisor)>
    sum_squared_error{"sum_squared_error"};
/// Operands dx, x, t, g: dx = scale (x - t) g.
inline constinit Slot<void(const Elementwise<4>&, double scale)> squared_error_backward{
    "squared_error_backward"};

}  // namespace tapestry::kernels
