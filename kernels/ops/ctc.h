#pragma once
// Contract of the connectionist temporal classification loss (Graves et al., "Connectionist temporal
// classification", 2006). The slot's dtype is that of the log-probabilities: f32 or f64.
#include "tapestry/kernels/slot.h"
#include "tapestry/kernels/view.h"

namespace tapestry::kernels {

/// A batch of N sequences with T steps and C classes. Sample n has its first input_lengths[n] steps, and the
/// labels targets[target_starts[n]] to targets[target_starts[n] + target_lengths[n] - 1]. Its extended labels
/// are the labels with a blank before, between and after them: 2 * target_lengths[n] + 1 of them. All lengths
/// and labels are valid. The integers are in the memory of the kernel's device.
struct CtcArgs {
  std::int64_t steps, batch, classes, blank;
  std::int64_t states;   // the largest number of extended labels; the row length of alpha
  ConstArray log_probs;  // (T, N, C)
  const std::int64_t *targets, *target_starts, *input_lengths, *target_lengths;  // (N) except the first
};

/// losses[n] = -log p(labels of n). alpha[n][t][s] = log of the probability of all paths through the steps 0
/// to t that end in extended label s. It is -infinity if there is no such path. Elements of steps and states
/// beyond the sample's lengths are not written.
struct CtcLossArgs {
  CtcArgs problem;
  MutableArray losses;  // (N)
  MutableArray alpha;   // (N, T, states)
};
inline constinit Slot<CtcLossArgs> ctc_loss{"ctc_loss"};

/// Writes all of dx, which has the shape of log_probs: dx = grad[n] (exp(log_probs) - q), where q is the
/// probability that the path is in class c at step t, given the labels. Steps beyond the sample's length get
/// 0. If `zero_infinity`, so do samples whose loss is infinite.
struct CtcLossBackwardArgs {
  CtcArgs problem;
  ConstArray losses, alpha, grad;  // grad: (N)
  MutableArray dx;
  bool zero_infinity;
};
inline constinit Slot<CtcLossBackwardArgs> ctc_loss_backward{"ctc_loss_backward"};

}  // namespace tapestry::kernels
