#pragma once
// Selection of entries by an index tensor.
#include "tapestry/core/tensor.h"

namespace tapestry {

/// Copies the entries of `dim` that a 1-d integer tensor selects. Throws IndexError if an index is out of
/// range.
Tensor index_select(const Tensor& x, std::int64_t dim, const Tensor& index);

}  // namespace tapestry
