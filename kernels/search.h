#pragma once
// Binary search, for host and device code.
#include <cstdint>

#include "tapestry/core/philox.h"  // TAPESTRY_HOST_DEVICE

namespace tapestry::kernels {

/// The number of elements of the sorted row that are less than `value`, or, if `right`, less than or equal to
/// it. `order`, if not null, is a permutation that sorts the row.
template <class T>
TAPESTRY_HOST_DEVICE inline std::int64_t position_in(const T* row, const std::int64_t* order, std::int64_t n,
                                                     T value, bool right) {
  std::int64_t low = 0, high = n;
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    const T element = row[order ? order[middle] : middle];
    if (right ? !(element > value) : !(element >= value)) low = middle + 1;
    else high = middle;
  }
  return low;
}

}  // namespace tapestry::kernels
