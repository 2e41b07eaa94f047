#pragma once
// Softmax along the middle of three dimensions: all tensors (outer, n, inner) dense and of the slot's dtype.
// f16 and bf16 are computed in f32. A row with NaN or +inf, or all -inf, gives NaN.
#include <cstdint>

#include "tapestry/kernels/slot.h"

namespace tapestry::kernels {

struct SoftmaxShape {
  std::int64_t outer, n, inner;
};

/// y = exp(x - max) / sum(exp(x - max))
inline constinit Slot<void(const SoftmaxShape&, const void* x, void* y)> softmax{"softmax"};
/// y = x - max - log(sum(exp(x - max)))
inline constinit Slot<void(const SoftmaxShape&, const void* x, void* y)> log_softmax{"log_softmax"};
/// dx = y (dy - sum(y dy))
inline constinit Slot<void(const SoftmaxShape&, const void* y, const void* dy, void* dx)> softmax_backward{
    "softmax_backward"};
/// dx = dy - exp(y) sum(dy)
inline constinit Slot<void(const SoftmaxShape&, const void* y, const void* dy, void* dx)>
    log_softmax_backward{"log_softmax_backward"};

}  // namespace tapestry::kernels
