#pragma once
// Functions of each element of one tensor. kernels/ops/functions.h has their formulas and derivatives.
#include <initializer_list>
#include <optional>

#include "tapestry/core/fixed_string.h"
#include "tapestry/core/tensor.h"

namespace tapestry {

namespace autograd {
/// Computes the function with that name and records it. The program does not link if there is none. `params`
/// are the numbers that the formula takes after x.
template <FixedString kName>
Tensor call_function(const Tensor& x, std::initializer_list<double> params = {});
}  // namespace autograd

/// nn::functional exports all functions of this namespace too.
inline namespace functions {

/// These functions take integers and bools, too, and give f32 for them.
inline Tensor exp(const Tensor& x) { return autograd::call_function<"exp">(x); }
inline Tensor log(const Tensor& x) { return autograd::call_function<"log">(x); }
inline Tensor sqrt(const Tensor& x) { return autograd::call_function<"sqrt">(x); }
inline Tensor rsqrt(const Tensor& x) { return autograd::call_function<"rsqrt">(x); }
inline Tensor tanh(const Tensor& x) { return autograd::call_function<"tanh">(x); }
inline Tensor sigmoid(const Tensor& x) { return autograd::call_function<"sigmoid">(x); }

/// These functions keep the dtype of integers. Throw TypeError for bools.
inline Tensor neg(const Tensor& x) { return autograd::call_function<"neg">(x); }
inline Tensor abs(const Tensor& x) { return autograd::call_function<"abs">(x); }
inline Tensor relu(const Tensor& x) { return autograd::call_function<"relu">(x); }
/// Limits x to [min, max]. If min > max, the result is max. If x or a limit is NaN, the result is NaN. The
/// gradient passes where min < x < max. Throws ValueError if both limits are missing.
Tensor clamp(const Tensor& x, std::optional<Scalar> min, std::optional<Scalar> max = {});

/// Computes x Phi(x) (Hendrycks and Gimpel 2016), exactly or by the tanh approximation.
inline Tensor gelu(const Tensor& x, bool tanh_approximation = false) {
  return tanh_approximation ? autograd::call_function<"gelu_tanh">(x) : autograd::call_function<"gelu">(x);
}
/// Computes x sigmoid(x).
inline Tensor silu(const Tensor& x) { return autograd::call_function<"silu">(x); }
/// log(1 + exp(beta x)) / beta, a smooth relu (Dugas et al. 2001). Where beta x > threshold, the result is x
/// itself.
inline Tensor softplus(const Tensor& x, double beta = 1, double threshold = 20) {
  return autograd::call_function<"softplus">(x, {beta, threshold});
}

}  // namespace functions

}  // namespace tapestry
