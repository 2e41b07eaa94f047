#pragma once
// Matrix products.
#include "tapestry/core/tensor.h"

namespace tapestry {

/// All of NumPy's shapes: (k) x (k) gives (), (m, k) x (k) gives (m), (k) x (k, n) gives (n), (..., m, k) x
/// (..., k, n) gives (..., m, n) with batches that broadcast. One floating dtype (TypeError otherwise);
/// ValueError for shapes that do not fit.
Tensor matmul(const Tensor& a, const Tensor& b);
/// x W^T + b: x (..., in), weight (out, in), bias (out) or undefined; result (..., out).
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {});

}  // namespace tapestry
