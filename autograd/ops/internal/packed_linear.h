#pragma once
// The product with a packed weight that gradients need.
#include "tapestry/core/packed_tensor.h"
#include "tapestry/core/tensor.h"

namespace tapestry::autograd {

/// Computes x W for x (..., out) and a packed W (out, in), in f32. Recorded if x needs a gradient.
Tensor packed_matmul(const Tensor& x, const PackedTensor& weight);

}  // namespace tapestry::autograd
