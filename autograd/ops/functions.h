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

/// Replaces NaN, infinity and -infinity. If `posinf` or `neginf` is missing, it is the largest or the lowest
/// finite number of the dtype. The gradient of a replaced element is 0. Integers and bools are copied.
Tensor nan_to_num(const Tensor& x, double nan = 0, std::optional<double> posinf = {},
                  std::optional<double> neginf = {});

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

/// Returns x if x > 0, else negative_slope x.
inline Tensor leaky_relu(const Tensor& x, double negative_slope = 0.01) {
  return autograd::call_function<"leaky_relu">(x, {negative_slope});
}
/// Returns x if x > 0, else alpha (exp(x) - 1) (Clevert et al. 2016).
inline Tensor elu(const Tensor& x, double alpha = 1) {
  return autograd::call_function<"elu">(x, {alpha, 1, 1});
}
/// elu with a fixed alpha, multiplied by a fixed scale, which keeps mean 0 and variance 1 from layer to layer
/// (Klambauer et al. 2017).
inline Tensor selu(const Tensor& x) {
  return autograd::call_function<"elu">(
      x, {1.6732632423543772848170429916717, 1.0507009873554804934193349852946, 1});
}
/// Returns x if x > 0, else alpha (exp(x / alpha) - 1) (Barron 2017). Throws ValueError if alpha is 0.
Tensor celu(const Tensor& x, double alpha = 1);
/// Computes x tanh(softplus(x)) (Misra 2019).
inline Tensor mish(const Tensor& x) { return autograd::call_function<"mish">(x); }
/// Computes x relu6(x + 3) / 6 (Howard et al. 2019).
inline Tensor hardswish(const Tensor& x) { return autograd::call_function<"hardswish">(x); }
/// Computes relu6(x + 3) / 6.
inline Tensor hardsigmoid(const Tensor& x) { return autograd::call_function<"hardsigmoid">(x); }
/// Limits x to [min, max]. Throws ValueError unless min <= max. The gradient passes where min < x < max. The
/// result has x's dtype: for integers, the bounds are rounded towards zero.
Tensor hardtanh(const Tensor& x, const Scalar& min = -1, const Scalar& max = 1);
/// Limits x to [0, 6].
inline Tensor relu6(const Tensor& x) { return hardtanh(x, 0, 6); }
/// Computes x / (1 + |x|).
Tensor softsign(const Tensor& x);
/// Computes log(sigmoid(x)) without overflow.
Tensor logsigmoid(const Tensor& x);
/// Returns x if x > 0, else weight x (He et al. 2015). The weight has 1 element, or one per channel
/// (dimension 1). Throws ValueError for another shape.
Tensor prelu(const Tensor& x, const Tensor& weight);
/// Splits x along `dim` into two halves a and b, and computes a sigmoid(b) (Dauphin et al. 2017). Throws
/// ValueError if the size is odd.
Tensor glu(const Tensor& x, std::int64_t dim = -1);

}  // namespace functions

}  // namespace tapestry
