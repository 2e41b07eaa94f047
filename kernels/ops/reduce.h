#pragma once
// Contracts of the reductions. For all slots in this file:
//   Shapes: a reduction combines all elements of x along some of its dimensions.
//   Layout: x has any strides. The output is dense.
//   Dtypes: the slot's dtype is that of x.
//   Accumulation: f32 for f16 and bf16, i64 for bool and integers. f32 and f64 are accumulated in blocks,
//   whose sums are then added, so that the error does not grow with the count.
// A result depends only on sizes and strides and, on a GPU, on whether x is aligned to 16 bytes. It does not
// depend on the number of threads.
#include <cstdint>

#include "tapestry/kernels/slot.h"
#include "tapestry/kernels/view.h"

namespace tapestry::kernels {

/// The dimensions of x, divided into kept and reduced ones. There is at least one of each. Adjacent
/// dimensions are merged where the strides allow it. Kept dimensions are in the order of the output. Reduced
/// dimensions are sorted from the largest stride to the smallest, so elements are not visited in the tensor's
/// order if several dimensions are reduced.
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

/// Computes sum(x) / divisor. If x is floating, the output has x's dtype or f32. If x is bool or integer, the
/// output is i64 and the divisor is 1.
struct SumArgs {
  Reduction reduction;
  double divisor;
};
inline constinit Slot<SumArgs> sum{"sum"};

/// Computes the sum of the elements that are not NaN. x is floating, and the output has x's dtype or f32.
inline constinit Slot<Reduction> nansum{"nansum"};

/// Computes the product of all elements. x is floating or i64, and the output has x's dtype. The product is
/// accumulated in f64 and rounded once; i64 wraps around.
inline constinit Slot<Reduction> prod{"prod"};

/// Computes sum((x - mean)^2) / divisor. `mean` is dense and has the output's shape. It is f32 if x is f16 or
/// bf16, and has x's dtype otherwise.
struct VarianceArgs {
  Reduction reduction;
  ConstArray mean;
  double divisor;
};
inline constinit Slot<VarianceArgs> variance{"variance"};

/// Computes log(sum(exp(x - max))) + max. An infinite max is replaced by 0. `max` is dense and has the
/// output's shape. It is f32 if x is f16 or bf16, and has x's dtype otherwise.
struct LogsumexpArgs {
  Reduction reduction;
  ConstArray max;
};
inline constinit Slot<LogsumexpArgs> logsumexp{"logsumexp"};

/// Computes (sum |x|^p)^(1/p). p = 0 counts the elements that are not 0. p = inf gives the largest |x|, and p
/// = -inf the smallest.
struct NormArgs {
  Reduction reduction;
  double p;
};
inline constinit Slot<NormArgs> norm{"norm"};

/// Computes the largest or the smallest element. The result is NaN if an element is NaN. The output has x's
/// dtype, or is f32 if x is f16 or bf16. `indices` (i64, dense) receives the index of the first such element
/// along the reduced dimension. If indices are requested, reduced_ndim is 1. Either the output or the indices
/// may be null. Each output reduces at least one element.
struct ExtremeArgs {
  Reduction reduction;
  std::int64_t* indices;
};
inline constinit Slot<ExtremeArgs> max{"max"}, min{"min"};

/// Computes dx = g x |x|^(p-2) / norm^(p-1), or 0 where that would divide by 0. The operands are (dx, x,
/// norm, g). For p = 0, dx is 0. For an infinite p, dx is g sign(x) where |x| equals the norm and 0
/// elsewhere. The caller has divided g by the number of ties.
struct NormBackwardArgs {
  Elementwise<4> operands;
  double p;
};
inline constinit Slot<NormBackwardArgs> norm_backward{"norm_backward"};

}  // namespace tapestry::kernels
