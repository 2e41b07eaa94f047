#pragma once
// Pointwise operations that are computed by other operations and have no kernels. Unless a comment says
// otherwise, they broadcast, promote dtypes and have gradients as the operations that compute them.
#include "tapestry/core/tensor.h"

namespace tapestry {

/// x^2. Bools give i64.
Tensor square(const Tensor& x);
/// 1 / x. Integers and bools give f32.
Tensor reciprocal(const Tensor& x);
/// x - trunc(x), which has the sign of x. Takes floating dtypes.
Tensor frac(const Tensor& x);

/// These functions give bools and have no gradient. Integers and bools are finite.
Tensor isfinite(const Tensor& x);
Tensor isinf(const Tensor& x);

/// a + weight (b - a). If weight >= 1/2, it is computed as b - (1 - weight) (b - a), so that it is exactly b
/// for weight = 1. Takes floating dtypes. f16 and bf16 are rounded after each step.
Tensor lerp(const Tensor& a, const Tensor& b, double weight);
Tensor lerp(const Tensor& a, const Tensor& b, const Tensor& weight);
/// x + value a b. Throws TypeError if the tensors hold integers and `value` is real.
Tensor addcmul(const Tensor& x, const Tensor& a, const Tensor& b, const Scalar& value = 1);
/// x + value a / b. Takes floating dtypes.
Tensor addcdiv(const Tensor& x, const Tensor& a, const Tensor& b, const Scalar& value = 1);

/// Returns `value` where the mask is true, else x, in x's dtype. The mask broadcasts. Throws TypeError unless
/// the mask is bool, and ValueError if x's dtype cannot hold the number, or if the tensor `value` has
/// dimensions.
Tensor masked_fill(const Tensor& x, const Tensor& mask, const Scalar& value);
Tensor masked_fill(const Tensor& x, const Tensor& mask, const Tensor& value);

/// These functions give bools, and have no gradient. An operand of another dtype is true where it is not 0;
/// NaN is true.
Tensor logical_and(const Tensor& a, const Tensor& b);
Tensor logical_or(const Tensor& a, const Tensor& b);
Tensor logical_xor(const Tensor& a, const Tensor& b);
Tensor logical_not(const Tensor& x);

/// These functions take integers and bools, and have no gradient. The operators are the same functions.
Tensor bitwise_and(const Tensor& a, const Tensor& b);
Tensor bitwise_or(const Tensor& a, const Tensor& b);
Tensor bitwise_xor(const Tensor& a, const Tensor& b);
Tensor bitwise_and(const Tensor& a, const Scalar& b);
Tensor bitwise_or(const Tensor& a, const Scalar& b);
Tensor bitwise_xor(const Tensor& a, const Scalar& b);
Tensor bitwise_not(const Tensor& x);
/// These functions take integers. A shift by a negative number, or by all bits or more, moves all bits out. A
/// right shift copies the sign.
Tensor bitwise_left_shift(const Tensor& a, const Tensor& b);
Tensor bitwise_right_shift(const Tensor& a, const Tensor& b);
Tensor bitwise_left_shift(const Tensor& a, const Scalar& b);
Tensor bitwise_right_shift(const Tensor& a, const Scalar& b);

inline Tensor operator&(const Tensor& a, const Tensor& b) { return bitwise_and(a, b); }
inline Tensor operator|(const Tensor& a, const Tensor& b) { return bitwise_or(a, b); }
inline Tensor operator^(const Tensor& a, const Tensor& b) { return bitwise_xor(a, b); }
inline Tensor operator&(const Tensor& a, const Scalar& b) { return bitwise_and(a, b); }
inline Tensor operator|(const Tensor& a, const Scalar& b) { return bitwise_or(a, b); }
inline Tensor operator^(const Tensor& a, const Scalar& b) { return bitwise_xor(a, b); }
inline Tensor operator~(const Tensor& x) { return bitwise_not(x); }

}  // namespace tapestry
