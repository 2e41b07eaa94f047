#pragma once
// Contracts of the scans: cumulative sums, products and extremes of rows. For all slots in this file:
//   Shapes: all arrays are (rows, n). Every row is scanned by itself.
//   Layout: all arrays are dense.
//   Dtypes: f32, f64 and i64. All arrays have the slot's dtype, but indices are i64.
//   Accumulation: f64 for f32 and f64 on CPUs, f32 on GPUs. Integers wrap around.
// A long row is scanned in blocks, which depend only on the shape. So a result does not depend on the number
// of threads.
#include <cstdint>

#include "tapestry/kernels/slot.h"
#include "tapestry/kernels/view.h"

namespace tapestry::kernels {

/// Computes y[r, i] = x[r, 0] + ... + x[r, i], or the product. If `reverse`, y[r, i] = x[r, i] + ... +
/// x[r, n - 1].
struct ScanArgs {
  std::int64_t rows, n;
  bool reverse;
  ConstArray x;
  MutableArray y;
};
inline constinit Slot<ScanArgs> cumsum{"cumsum"}, cumprod{"cumprod"};

/// Computes dx[r, i] = sum over j >= i of dy[r, j] * (the product of x[r, 0 ... j] without x[r, i]), without
/// a division: dx[i] = y[i - 1] * s[i], where y is the result of cumprod and s[i] = dy[i] + x[i + 1] * s[i +
/// 1]. So zeros in x need no special case.
struct CumprodBackwardArgs {
  std::int64_t rows, n;
  ConstArray x, y, dy;
  MutableArray dx;
};
inline constinit Slot<CumprodBackwardArgs> cumprod_backward{"cumprod_backward"};

/// Computes the largest (or smallest) of x[r, 0 ... i] and the index of its last occurrence. After a NaN, all
/// values are NaN, and the index is that of the last NaN.
struct CummaxArgs {
  std::int64_t rows, n;
  bool largest;
  ConstArray x;
  MutableArray y, indices;
};
inline constinit Slot<CummaxArgs> cummax{"cummax"};

/// Computes dx[r, i] = the sum of dy[r, j] over all j with index[r, j] = i. The index comes from cummax.
/// Floating dtypes.
struct CummaxBackwardArgs {
  std::int64_t rows, n;
  ConstArray index, dy;
  MutableArray dx;
};
inline constinit Slot<CummaxBackwardArgs> cummax_backward{"cummax_backward"};

/// Computes y[r, i] = log(exp(x[r, 0]) + ... + exp(x[r, i])). `reverse` is false. Floating dtypes.
inline constinit Slot<ScanArgs> logcumsumexp{"logcumsumexp"};

/// Computes dx[r, i] = the sum over j >= i of dy[r, j] exp(x[r, i] - y[r, j]), where y is the result of
/// logcumsumexp: dx[i] = exp(x[i] - y[i]) s[i] with s[i] = dy[i] + exp(y[i] - y[i + 1]) s[i + 1]. No exponent
/// is positive. The slot takes the arguments of cumprod_backward.
inline constinit Slot<CumprodBackwardArgs> logcumsumexp_backward{"logcumsumexp_backward"};

}  // namespace tapestry::kernels
