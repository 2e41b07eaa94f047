#pragma once
// Matrix products.
#include "tapestry/core/tensor.h"

namespace tapestry {

/// Computes the matrix product, with NumPy's rules for shapes: (k) x (k) gives (), (m, k) x (k) gives (m),
/// (k) x (k, n) gives (n), and (..., m, k) x (..., k, n) gives (..., m, n). Batch dimensions broadcast.
/// Throws TypeError unless both have the same floating dtype, and ValueError if the shapes do not fit.
Tensor matmul(const Tensor& a, const Tensor& b);
/// Computes x W^T + b. Shapes: x is (..., in), weight is (out, in), bias is (out) or undefined, and the
/// result is (..., out).
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {});

}  // namespace tapestry
