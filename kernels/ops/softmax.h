#pragma once
// Contracts of softmax and log-softmax. For all slots in this file:
//   Shapes: all arrays are (outer, n, inner). A row is the n elements along the middle dimension.
//   Layout: all arrays are dense.
//   Dtypes: all arrays have the slot's dtype, which is floating.
//   Accumulation: f32, or f64 for f64.
// A row gives NaN if it has NaN or +inf, or if all its elements are -inf.
#include <cstdint>

#include "tapestry/kernels/slot.h"
#include "tapestry/kernels/view.h"

namespace tapestry::kernels {

struct SoftmaxShape {
  std::int64_t outer, n, inner;
};

struct SoftmaxArgs {
  SoftmaxShape shape;
  ConstArray x;
  MutableArray y;
};
/// Computes y = exp(x - max) / sum(exp(x - max)).
inline constinit Slot<SoftmaxArgs> softmax{"softmax"};
/// Computes y = x - max - log(sum(exp(x - max))).
inline constinit Slot<SoftmaxArgs> log_softmax{"log_softmax"};

struct SoftmaxBackwardArgs {
  SoftmaxShape shape;
  ConstArray y, dy;
  MutableArray dx;
};
/// Computes dx = y (dy - sum(y dy)).
inline constinit Slot<SoftmaxBackwardArgs> softmax_backward{"softmax_backward"};
/// Computes dx = dy - exp(y) sum(dy).
inline constinit Slot<SoftmaxBackwardArgs> log_softmax_backward{"log_softmax_backward"};

}  // namespace tapestry::kernels
