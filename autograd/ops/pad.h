#pragma once
// Padding.
#include <vector>

#include "tapestry/core/tensor.h"

namespace tapestry {

enum class PadMode {
  constant,   ///< a value
  reflect,    ///< the elements in reverse order, without the one at the edge; less than the size
  replicate,  ///< the element at the edge
  circular    ///< the elements at the other end; at most the size
};

/// Pads the last dimensions. `padding` has the numbers of elements to add before and after the last
/// dimension, then before and after the dimension before it, and so on. Negative numbers remove elements.
/// Unlike in PyTorch, all modes take tensors of any number of dimensions, and other modes than
/// PadMode::constant reflect, repeat or wrap what is left after elements were removed. `value` is used by
/// PadMode::constant only. Throws ValueError if a size would be negative, or if a mode needs more elements
/// than there are.
Tensor pad(const Tensor& x, const std::vector<std::int64_t>& padding, PadMode mode = PadMode::constant,
           const Scalar& value = 0);

}  // namespace tapestry
