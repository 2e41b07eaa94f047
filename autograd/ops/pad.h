#pragma once
// Padding.
#include <vector>

#include "tapestry/core/tensor.h"

namespace tapestry {

enum class PadMode {
  constant,   ///< inserts a value
  reflect,    ///< mirrors the elements at the edge, without repeating the edge; takes less padding than the
              ///< size
  replicate,  ///< repeats the element at the edge
  circular    ///< continues with the elements at the other end; takes at most as much padding as the size
};

/// Pads the last dimensions. `padding` has the numbers of elements to add before and after the last
/// dimension, then before and after the dimension before it, and so on. Negative numbers remove elements; the
/// modes other than PadMode::constant then use the elements that are left. All modes take tensors of any
/// number of dimensions; PyTorch limits it. Only PadMode::constant uses `value`. Throws ValueError if more
/// elements would be removed than there are, or if a mode needs more elements than are left.
Tensor pad(const Tensor& x, const std::vector<std::int64_t>& padding, PadMode mode = PadMode::constant,
           const Scalar& value = 0);

}  // namespace tapestry
