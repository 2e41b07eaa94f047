#pragma once
// Comparisons and choices.
#include "tapestry/core/tensor.h"

namespace tapestry {

/// Returns a where `condition` is true, else b. All three tensors broadcast. Throws TypeError unless the
/// condition is bool.
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);
/// A number does not change the other operand's dtype unless its category (bool, integer, real) is higher.
/// Two numbers give bool, i64 or f32.
Tensor where(const Tensor& condition, const Tensor& a, const Scalar& b);
Tensor where(const Tensor& condition, const Scalar& a, const Tensor& b);
Tensor where(const Tensor& condition, const Scalar& a, const Scalar& b);

/// Comparisons give bool tensors and have no gradient. Numbers compare by their values: one that the tensor's
/// integer dtype cannot hold does not wrap, unlike in PyTorch.
Tensor eq(const Tensor& a, const Tensor& b);
Tensor ne(const Tensor& a, const Tensor& b);
Tensor lt(const Tensor& a, const Tensor& b);
Tensor le(const Tensor& a, const Tensor& b);
Tensor gt(const Tensor& a, const Tensor& b);
Tensor ge(const Tensor& a, const Tensor& b);
Tensor eq(const Tensor& a, const Scalar& b);
Tensor ne(const Tensor& a, const Scalar& b);
Tensor lt(const Tensor& a, const Scalar& b);
Tensor le(const Tensor& a, const Scalar& b);
Tensor gt(const Tensor& a, const Scalar& b);
Tensor ge(const Tensor& a, const Scalar& b);
inline Tensor operator==(const Tensor& a, const Tensor& b) { return eq(a, b); }
inline Tensor operator!=(const Tensor& a, const Tensor& b) { return ne(a, b); }
inline Tensor operator<(const Tensor& a, const Tensor& b) { return lt(a, b); }
inline Tensor operator<=(const Tensor& a, const Tensor& b) { return le(a, b); }
inline Tensor operator>(const Tensor& a, const Tensor& b) { return gt(a, b); }
inline Tensor operator>=(const Tensor& a, const Tensor& b) { return ge(a, b); }
inline Tensor operator==(const Tensor& a, const Scalar& b) { return eq(a, b); }
inline Tensor operator!=(const Tensor& a, const Scalar& b) { return ne(a, b); }
inline Tensor operator<(const Tensor& a, const Scalar& b) { return lt(a, b); }
inline Tensor operator<=(const Tensor& a, const Scalar& b) { return le(a, b); }
inline Tensor operator>(const Tensor& a, const Scalar& b) { return gt(a, b); }
inline Tensor operator>=(const Tensor& a, const Scalar& b) { return ge(a, b); }
/// True where x is NaN. Integers and bools are never NaN.
Tensor isnan(const Tensor& x);
/// True where |a - b| <= atol + rtol |b|. Infinities are close to themselves. With `equal_nan`, so are NaNs.
Tensor isclose(const Tensor& a, const Tensor& b, double rtol = 1e-5, double atol = 1e-8,
               bool equal_nan = false);

/// True if |a - b| <= atol + rtol |b| for all elements, after broadcasting. Infinities are close to
/// themselves. With `equal_nan`, so are NaNs.
bool allclose(const Tensor& a, const Tensor& b, double rtol = 1e-5, double atol = 1e-8,
              bool equal_nan = false);
/// True if shape, dtype and all elements are equal.
bool equal(const Tensor& a, const Tensor& b);

}  // namespace tapestry
