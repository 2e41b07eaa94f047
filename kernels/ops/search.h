#pragma once
// Contracts of binary search in sorted numbers, and of counting integers. All arrays are dense.
#include <cstdint>

#include "tapestry/kernels/slot.h"
#include "tapestry/kernels/view.h"

namespace tapestry::kernels {

/// For each of `count` values, writes how many elements of a sorted row are less than the value, or, if
/// `right`, less than or equal to it.
///   Shapes: values and out are (count). sorted and sorter are (rows, n). Value i searches row i / per_row,
///   or
///     the only row if `per_row` is 0.
///   Order: if sorter is not null, element sorter[r, j] of row r is the j-th smallest. Otherwise, rows
///   ascend. Dtypes: sorted and values have the slot's dtype: f32, f64 or i64. sorter and out are i64.
///   Indices in
///     sorter are in range.
/// A comparison with NaN counts as "less": the result for a NaN value is n.
struct SearchsortedArgs {
  std::int64_t count, per_row, n;
  bool right;
  ConstArray sorted, sorter, values;
  MutableArray out;
};
inline constinit Slot<SearchsortedArgs> searchsorted{"searchsorted"};

/// Adds the number of elements x[i] = j to out[j]. x is (n), out is (bins). Both are i64, and 0 <= x[i] <
/// bins.
struct BincountArgs {
  std::int64_t n, bins;
  ConstArray x;
  MutableArray out;
};
inline constinit Slot<BincountArgs> bincount{"bincount"};

}  // namespace tapestry::kernels
