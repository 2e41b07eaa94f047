#pragma once
// Contracts of the reductions, over some dimensions of a strided input into a dense output. Slots go by the
// dtype of the input. f16 and bf16 are accumulated in f32. f32 is accumulated in f32 by blocks that are added
// up, so that the error does not grow with the count. bool and integers are accumulated in i64. A kernel's
// result depends only on sizes and strides and, on a GPU, on whether x is aligned to 16 bytes. It does not
// depend on the number of threads.
#include <cstdint>

#include "tapestry/kernels/slot.h"
#include "tapestry/kernels/view.h"

namespace tapestry::kernels {

/// The input as kept x reduced dimensions, at least one of each. Neighbouring dimensions are merged where the
/// strides allow it. Kept dimensions are in the order of the output. Reduced dimensions go from the largest
/// stride to the smallest, so elements are not visited in the tensor's order if several dimensions are
/// reduced.
struct Reduction {
  int kept_ndim = 0, reduced_ndim = 0;
  std::int64_t outputs = 1, count = 1;                        // products of the sizes below
  std::int64_t kept_sizes[kMaxDims], kept_strides[kMaxDims];  // strides of the input, in elements
  std::int64_t reduced_sizes[kMaxDims], reduced_strides[kMaxDims];
  ConstArray x;
  MutableArray out;  // dense

  /// Reduces dimension i of `x` if bit i of `reduced` is set. `out` may be undefined.
  Reduction(const Tensor& x, unsigned reduced, const Tensor& out);
};

/// sum(x) / divisor. The output of a floating dtype has that dtype or f32. The output of bool and integers is
/// i64, and the divisor is 1.
struct SumArgs {
  Reduction reduction;
  double divisor;
};
inline constinit Slot<SumArgs> sum{"sum"};

/// sum((x - mean)^2) / divisor. `mean` is dense like the output, and f32 for f16 and bf16.
struct VarianceArgs {
  Reduction reduction;
  ConstArray mean;
  double divisor;
};
inline constinit Slot<VarianceArgs> variance{"variance"};

/// log(sum(exp(x - max))) + max, where an infinite max counts as 0. `max` is dense like the output, and f32
/// for f16 and bf16.
struct LogsumexpArgs {
  Reduction reduction;
  ConstArray max;
};
inline constinit Slot<LogsumexpArgs> logsumexp{"logsumexp"};

/// (sum |x|^p)^(1/p). p = 0 counts the non-zeros, p = inf gives the largest |x| and p = -inf the smallest.
struct NormArgs {
  Reduction reduction;
  double p;
};
inline constinit Slot<NormArgs> norm{"norm"};

/// The largest or the smallest element; NaN wins. The output has the input's dtype, or f32 for f16 and bf16.
/// `indices` (i64, dense) are the positions of the first hit along the one reduced dimension, and
/// reduced_ndim is 1 if they are wanted. Either the output or the indices may be null. The count is not 0.
struct ExtremeArgs {
  Reduction reduction;
  std::int64_t* indices;
};
inline constinit Slot<ExtremeArgs> max{"max"}, min{"min"};

/// dx = g x |x|^(p-2) / norm^(p-1), and 0 where that divides by 0; operands (dx, x, norm, g). For p = 0 it is
/// zero. For an infinite p it is g sign(x) where |x| equals the norm; the caller has divided g among ties.
struct NormBackwardArgs {
  Elementwise<4> operands;
  double p;
};
inline constinit Slot<NormBackwardArgs> norm_backward{"norm_backward"};

}  // namespace tapestry::kernels
