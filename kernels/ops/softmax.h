#pragma once
// Contracts of softmax and log-softmax, along the middle one of three dimensions. All arrays are (outer, n,
// inner), dense and of the slot's dtype. f16 and bf16 are computed in f32. A row that has NaN or +inf, or
// consists of -inf, gives NaN.
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
/// y = exp(x - max) / sum(exp(x - max))
inline constinit Slot<SoftmaxArgs> softmax{"softmax"};
/// y = x - max - log(sum(exp(x - max)))
inline constinit Slot<SoftmaxArgs> log_softmax{"log_softmax"};

struct SoftmaxBackwardArgs {
  SoftmaxShape shape;
  ConstArray y, dy;
  MutableArray dx;
};
/// dx = y (dy - sum(y dy))
inline constinit Slot<SoftmaxBackwardArgs> softmax_backward{"softmax_backward"};
/// dx = dy - exp(y) sum(dy)
inline constinit Slot<SoftmaxBackwardArgs> log_softmax_backward{"log_softmax_backward"};

}  // namespace tapestry::kernels
