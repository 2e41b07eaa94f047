#pragma once
// Elementary functions of each element of one tensor, and functions that round. kernels/ops/elementary.h has
// their formulas and derivatives. Each has a method, and a method in place whose name ends in an underscore.
#include <optional>

#include "tapestry/core/tensor.h"

namespace tapestry {

/// These functions take all dtypes. Integers and bools give f32. Where a function has no real value, the
/// result is NaN. Angles are in radians, of any size.
Tensor sin(const Tensor& x);
Tensor cos(const Tensor& x);
Tensor tan(const Tensor& x);
Tensor asin(const Tensor& x);
Tensor acos(const Tensor& x);
Tensor atan(const Tensor& x);
Tensor sinh(const Tensor& x);
Tensor cosh(const Tensor& x);
Tensor asinh(const Tensor& x);
Tensor acosh(const Tensor& x);
Tensor atanh(const Tensor& x);
/// The error function, and its inverse.
Tensor erf(const Tensor& x);
Tensor erfinv(const Tensor& x);
/// The complementary error function 1 - erf(x), which keeps its digits where it is small.
Tensor erfc(const Tensor& x);
/// The logarithm of |Gamma(x)|. Infinity at 0 and the negative integers.
Tensor lgamma(const Tensor& x);
/// The derivative of the logarithm of Gamma(x). -infinity at 0, infinity at -0, and NaN at the negative
/// integers. Its gradient has no gradient.
Tensor digamma(const Tensor& x);
/// log(x / (1 - x)), the inverse of sigmoid. With `eps`, x is first limited to [eps, 1 - eps].
Tensor logit(const Tensor& x, std::optional<double> eps = {});
/// exp(x) - 1 and log(1 + x), which keep their digits near x = 0.
Tensor expm1(const Tensor& x);
Tensor log1p(const Tensor& x);
Tensor exp2(const Tensor& x);
Tensor log2(const Tensor& x);
Tensor log10(const Tensor& x);

/// These functions keep the dtype. Their gradient is 0. Integers are returned as a copy. Throw TypeError for
/// bools.
Tensor floor(const Tensor& x);
Tensor ceil(const Tensor& x);
/// Rounds towards 0.
Tensor trunc(const Tensor& x);
/// Rounds to the nearest integer, and to the even one of two. With `decimals`, rounds to the nearest multiple
/// of 10^-decimals; then integers throw TypeError.
Tensor round(const Tensor& x, std::int64_t decimals = 0);
/// -1, 0 or 1; 0 for NaN, as in PyTorch. The gradient is 0. Bools are returned as a copy.
Tensor sign(const Tensor& x);

}  // namespace tapestry
