#pragma once
// Matrix products.
#include "tapestry/core/tensor.h"

namespace tapestry {

/// All of NumPy's shapes: vector-vector, matrix-vector, matrix-matrix, and batches that broadcast. Floating
/// dtypes.
Tensor matmul(const Tensor& a, const Tensor& b);
/// x W^T + b: x (..., in), weight (out, in), bias (out) or undefined; result (..., out).
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {});

}  // namespace tapestry
