#pragma once
// Arithmetic with tensors and numbers. Tensors broadcast, and dtypes promote as in PyTorch. f16 and bf16 are
// computed in f32 and rounded.
#include <string_view>

#include "tapestry/core/tensor.h"

namespace tapestry {

/// Integers wrap around. For bools, add is "or" and mul is "and". Throws ValueError if the shapes do not
/// broadcast, DeviceError if the operands are on different devices, and TypeError for sub and pow of bools.
Tensor add(const Tensor& a, const Tensor& b);
Tensor sub(const Tensor& a, const Tensor& b);
Tensor mul(const Tensor& a, const Tensor& b);
/// Computes a / b by true division. Integers give f32.
Tensor div(const Tensor& a, const Tensor& b);
/// Computes a^b. If integers are raised to a tensor of negative integer exponents, fractions are dropped, so
/// the results are 1, -1 or 0. If the negative exponent is a number instead, throws ValueError.
Tensor pow(const Tensor& a, const Tensor& b);
/// The result is NaN where a or b is NaN. Where a and b are equal, each gets half of the gradient.
Tensor maximum(const Tensor& a, const Tensor& b);
Tensor minimum(const Tensor& a, const Tensor& b);
/// Computes the angle of the point (b, a) in radians, in [-pi, pi]. Integers give f32. At the origin the
/// result is that of std::atan2, and the gradients are 0.
Tensor atan2(const Tensor& a, const Tensor& b);
/// Computes the remainder of a / b with the sign of a (fmod) or of b (remainder, as % in Python).
/// floor_divide rounds the quotient down, and its gradients are 0. Throw ValueError if an integer is divided
/// by 0; on a GPU, where the check would wait for the device, the result is 0 instead.
Tensor fmod(const Tensor& a, const Tensor& b);
Tensor remainder(const Tensor& a, const Tensor& b);
Tensor floor_divide(const Tensor& a, const Tensor& b);
Tensor fmod(const Tensor& a, const Scalar& b);
Tensor remainder(const Tensor& a, const Scalar& b);
Tensor remainder(const Scalar& a, const Tensor& b);
Tensor floor_divide(const Tensor& a, const Scalar& b);
/// Computes a / b, rounded if `rounding_mode` is "floor" or "trunc". Then integers stay integers, and the
/// gradients are 0.
Tensor div(const Tensor& a, const Tensor& b, std::string_view rounding_mode);
Tensor div(const Tensor& a, const Scalar& b, std::string_view rounding_mode);
/// Computes a log(b), which is 0 where a = 0 unless b is NaN. Integers give f32.
Tensor xlogy(const Tensor& a, const Tensor& b);
/// sqrt(a^2 + b^2), without overflow or underflow of the squares. Takes floating dtypes.
Tensor hypot(const Tensor& a, const Tensor& b);
/// log(exp(a) + exp(b)), without overflow. Takes floating dtypes.
Tensor logaddexp(const Tensor& a, const Tensor& b);
Tensor add(const Tensor& a, const Scalar& b);
Tensor sub(const Tensor& a, const Scalar& b);
Tensor mul(const Tensor& a, const Scalar& b);
Tensor div(const Tensor& a, const Scalar& b);
Tensor pow(const Tensor& a, const Scalar& b);
/// Compute number - tensor and number / tensor.
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
inline Tensor operator%(const Tensor& a, const Tensor& b) { return remainder(a, b); }
inline Tensor operator%(const Tensor& a, const Scalar& b) { return remainder(a, b); }

}  // namespace tapestry
