#pragma once
// Reductions: over some dimensions of a strided input into a dense output. Slots go by the dtype of the
// input. f16 and bf16 are accumulated in f32, f32 in f32 with blocks added up so that the error does not grow
// with the count, bool and integers in i64. A kernel's result depends on sizes and strides only, on a GPU
// also on whether x is aligned to 16 bytes; never on how many threads ran it.
#include <cstdint>

#include "tapestry/kernels/slot.h"
#include "tapestry/kernels/view.h"

namespace tapestry::kernels {

/// The input seen as kept x reduced dimensions, at least one of each, neighbours merged where strides allow
/// it. Kept dimensions are in the order of the output. Reduced ones go from the largest stride to the
/// smallest, so the order in which elements are met is not that of the tensor where several are reduced.
struct Reduce {
  int kept_ndim = 0, reduced_ndim = 0;
  std::int64_t outputs = 1, count = 1;                        // products of the sizes below
  std::int64_t kept_sizes[kMaxDims], kept_strides[kMaxDims];  // strides of the input, in elements
  std::int64_t reduced_sizes[kMaxDims], reduced_strides[kMaxDims];
  const void* x = nullptr;
  void* out = nullptr;  // dense
  DType out_dtype = DType::f32;

  /// Reduces dimension i of `x` where bit i of `reduced` is set.
  Reduce(const Tensor& x, unsigned reduced, const Tensor& out);
};

/// sum(x) / divisor. Output: the input's dtype or f32 for floating dtypes, i64 for bool and integers, where
/// the divisor is 1.
inline constinit Slot<void(const Reduce&, double divisor)> sum{"sum"};
/// sum((x - mean)^2) / divisor; `mean` is dense like the output, f32 for f16 and bf16.
inline constinit Slot<void(const Reduce&, const void* mean, double divisor)> variance{"variance"};
/// log(sum(exp(x - max))) + max, where an infinite max counts as 0; `max` is dense, f32 for f16 and bf16.
inline constinit Slot<void(const Reduce&, const void* max)> logsumexp{"logsumexp"};
/// (sum |x|^p)^(1/p); the number of non-zeros for p = 0; the largest |x| for p = inf, the smallest for -inf.
inline constinit Slot<void(const Reduce&, double p)> norm{"norm"};
/// The largest and the smallest element; NaN wins. The output (the input's dtype, or f32 for f16 and bf16) or
/// the indices may be null. `indices` (i64, dense) are positions along the one reduced dimension, of the
/// first hit; then reduced_ndim is 1. The count is not 0.
inline constinit Slot<void(const Reduce&, std::int64_t* indices)> max{"max"};
inline constinit Slot<void(const Reduce&, std::int64_t* indices)> min{"min"};

/// Operands dx, x, norm, g: dx = g x |x|^(p-2) / norm^(p-1), 0 where that divides by 0; for p = 0 zero; for
/// infinite p g sign(x) where |x| equals the norm (g is then already shared by ties).
inline constinit Slot<void(const Elementwise<4>&, double p)> norm_backward{"norm_backward"};

}  // namespace tapestry::kernels
