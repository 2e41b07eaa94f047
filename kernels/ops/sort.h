#pragma once
// Contracts of the kernels that order the elements of rows. For all slots in this file:
//   Shapes: x is (rows, n). Every row is ordered by itself.
//   Layout: all arrays are dense.
//   Dtypes: x and all values have the slot's dtype. Indices are i64 positions in a row.
//   Order: -0 equals 0. NaN equals NaN and is greater than every number. Equal elements keep the order of
//   their positions, in ascending and in descending order. So the result is unique.
#include <cstdint>

#include "tapestry/kernels/slot.h"
#include "tapestry/kernels/view.h"

namespace tapestry::kernels {

/// Writes the first k elements of each row in ascending or descending order, with 1 <= k <= n. values and
/// indices are (rows, k). values may be null. If the dtype is an integer or bool, indices may be null.
struct SortArgs {
  std::int64_t rows, n, k;
  bool descending;
  ConstArray x;
  MutableArray values, indices;
};
inline constinit Slot<SortArgs> sort{"sort"};

/// Writes element k of the ascending order of each row, with 0 <= k < n. If `propagate_nan`, a row that has
/// NaN gives its first NaN instead. values and indices are (rows).
struct KthvalueArgs {
  std::int64_t rows, n, k;
  bool propagate_nan;
  ConstArray x;
  MutableArray values, indices;
};
inline constinit Slot<KthvalueArgs> kthvalue{"kthvalue"};

/// Sets y[r, index[r, j]] = x[r, j] and leaves all other elements of y unchanged. x and index are (rows, k),
/// y is (rows, n). The indices of a row are distinct and in range. The dtypes are floating or i64.
struct PutArgs {
  std::int64_t rows, n, k;
  ConstArray index, x;
  MutableArray y;
};
inline constinit Slot<PutArgs> put{"put"};

}  // namespace tapestry::kernels
