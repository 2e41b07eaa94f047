#pragma once
// Elementwise arithmetic, functions and comparisons, with NumPy's broadcasting and PyTorch's type promotion.
// f16 and bf16 are stored as such and computed in f32.
#include <optional>

#include "tapestry/core/tensor.h"

namespace tapestry {

/// Integers wrap around; of bools add is "or", mul is "and", and sub and pow are a TypeError. Shapes that do
/// not broadcast are a ValueError, operands on two devices a DeviceError.
Tensor add(const Tensor& a, const Tensor& b);
Tensor sub(const Tensor& a, const Tensor& b);
Tensor mul(const Tensor& a, const Tensor& b);
/// True division: integers give f32.
Tensor div(const Tensor& a, const Tensor& b);
/// Integers to a negative power: ValueError for a number, and of a tensor 1, -1 or 0 (the fraction is cut
/// off).
Tensor pow(const Tensor& a, const Tensor& b);
/// NaN wins; the gradient of a tie is shared half and half.
Tensor maximum(const Tensor& a, const Tensor& b);
Tensor minimum(const Tensor& a, const Tensor& b);
Tensor add(const Tensor& a, const Scalar& b);
Tensor sub(const Tensor& a, const Scalar& b);
Tensor mul(const Tensor& a, const Scalar& b);
Tensor div(const Tensor& a, const Scalar& b);
Tensor pow(const Tensor& a, const Scalar& b);
/// scalar - tensor, scalar / tensor
Tensor rsub(const Scalar& a, const Tensor& b);
Tensor rdiv(const Scalar& a, const Tensor& b);

inline Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b); }
inline Tensor operator-(const Tensor& a, const Tensor& b) { return sub(a, b); }
inline Tensor operator*(const Tensor& a, const Tensor& b) { return mul(a, b); }
inline Tensor operator/(const Tensor& a, const Tensor& b) { return div(a, b); }
inline Tensor operator+(const Tensor& a, const Scalar& b) { return add(a, b); }
inline Tensor operator-(const Tensor& a, const Scalar& b) { return sub(a, b); }
inline Tensor operator*(const Tensor& a, const Scalar& b) { return mul(a, b); }
inline Tensor operator/(const Tensor& a, const Scalar& b) { return div(a, b); }
inline Tensor operator+(const Scalar& a, const Tensor& b) { return add(b, a); }
inline Tensor operator*(const Scalar& a, const Tensor& b) { return mul(b, a); }
inline Tensor operator-(const Scalar& a, const Tensor& b) { return rsub(a, b); }
inline Tensor operator/(const Scalar& a, const Tensor& b) { return rdiv(a, b); }

/// Functions of each element. Integers and bools give f32, but for neg, abs, relu and clamp, which keep the
/// dtype; gelu and silu take floating dtypes only (TypeError).
Tensor neg(const Tensor& x);
Tensor abs(const Tensor& x);
Tensor exp(const Tensor& x);
Tensor log(const Tensor& x);
Tensor sqrt(const Tensor& x);
Tensor rsqrt(const Tensor& x);
Tensor tanh(const Tensor& x);
Tensor sigmoid(const Tensor& x);
Tensor relu(const Tensor& x);
/// x Phi(x) (Hendrycks and Gimpel 2016), exact or by the tanh approximation.
Tensor gelu(const Tensor& x, bool tanh_approximation = false);
/// x sigmoid(x)
Tensor silu(const Tensor& x);
/// Limits to [min, max], to max where min > max; NaN, as x or as a limit, gives NaN; the gradient passes
/// where min < x < max. ValueError with neither.
Tensor clamp(const Tensor& x, std::optional<Scalar> min, std::optional<Scalar> max = {});

/// a where `condition` (bool, else TypeError) is true, else b; the three broadcast.
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);

/// Comparisons give bool tensors and have no gradient.
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
Tensor isnan(const Tensor& x);

/// |a - b| <= atol + rtol |b| everywhere, after broadcasting. Infinities are close to themselves.
bool allclose(const Tensor& a, const Tensor& b, double rtol = 1e-5, double atol = 1e-8,
              bool equal_nan = false);
/// Same shape, dtype and elements.
bool equal(const Tensor& a, const Tensor& b);

}  // namespace tapestry
