#pragma once
// Rows of the functions of one tensor. f16 and bf16 are computed in f32 and
// rounded once. Integers wrap around. In an in-place operation the output and the input are the same
// elements. The output never overlaps an input partly.
#include <limits>
#include <numbers>

#include "tapestry/kernels/ops/arithmetic.h"
#include "tapestry/kernels/ops/pointwise.h"

namespace tapestry::kernels {

struct Neg : Function<"neg", Takes::numbers, GradientFrom::neither> {
  using Gradient = Neg;  // -dy
  template <class M, class C>
  TAPESTRY_FORMULA C value(C x) {
    if constexpr (!std::is_integral_v<C>) return -x;
    else return static_cast<C>(Wrapping<C>(0) - static_cast<Wrapping<C>>(x));
  }
};
struct Abs : Function<"abs", Takes::numbers, GradientFrom::input> {
  template <class M, class C>
  TAPESTRY_FORMULA C value(C x) {
    if constexpr (std::is_floating_point_v<C>) return M::abs(x);
    else if constexpr (std::is_signed_v<C>) return x < 0 ? Neg::value<M>(x) : x;
    else return x;
  }
  /// Returns dy sign(x), which is 0 at 0.
  template <class M, class C>
  TAPESTRY_FORMULA C gradient(C dy, C x) {
    return dy * M::sign(x);
  }
};
struct Relu : Function<"relu", Takes::numbers, GradientFrom::output> {
  static constexpr bool kF16OnGpus = true;
  template <class M, class C>
  TAPESTRY_FORMULA C value(C x) {
    return x < 0 ? C(0) : x;  // keeps NaN
  }
  template <class M, class C>
  TAPESTRY_FORMULA C gradient(C dy, C y) {
    return select(y <= 0, C(0), dy);
  }
};
struct Exp : Function<"exp", Takes::all_as_f32, GradientFrom::output> {
  static constexpr CastPolicy kCastOnGpus = CastPolicy::f32;
  static constexpr bool kElementary = true;
  using Gradient = Mul;  // dy y
  template <class M, class C>
  TAPESTRY_FORMULA C value(C x) {
    return M::exp(x);
  }
};
struct Log : Function<"log", Takes::all_as_f32, GradientFrom::input> {
  static constexpr CastPolicy kCastOnGpus = CastPolicy::f32;
  static constexpr bool kElementary = true;
  using Gradient = Div;  // dy / x
  template <class M, class C>
  TAPESTRY_FORMULA C value(C x) {
    return M::log(x);
  }
};
struct Sqrt : Function<"sqrt", Takes::all_as_f32, GradientFrom::output> {
  template <class M, class C>
  TAPESTRY_FORMULA C value(C x) {
    return M::sqrt(x);
  }
  template <class M, class C>
  TAPESTRY_FORMULA C gradient(C dy, C y) {
    return dy / (2 * y);
  }
};
struct Rsqrt : Function<"rsqrt", Takes::all_as_f32, GradientFrom::output> {
  static constexpr CastPolicy kCastOnGpus = CastPolicy::f32;
  template <class M, class C>
  TAPESTRY_FORMULA C value(C x) {
    return M::rsqrt(x);
  }
  template <class M, class C>
  TAPESTRY_FORMULA C gradient(C dy, C y) {
    return C(-0.5) * dy * (y * y * y);
  }
};
struct Tanh : Function<"tanh", Takes::all_as_f32, GradientFrom::output> {
  static constexpr bool kElementary = true;
  static constexpr bool kF16OnGpus = true;
  template <class M, class C>
  TAPESTRY_FORMULA C value(C x) {
    return M::tanh(x);
  }
  template <class M, class C>
  TAPESTRY_FORMULA C gradient(C dy, C y) {
    return dy * (1 - y * y);
  }
};
struct Sigmoid : Function<"sigmoid", Takes::all_as_f32, GradientFrom::output> {
  static constexpr bool kElementary = true;
  static constexpr bool kF16OnGpus = true;
  template <class M, class C>
  TAPESTRY_FORMULA C value(C x) {
    return M::sigmoid(x);
  }
  template <class M, class C>
  TAPESTRY_FORMULA C gradient(C dy, C y) {
    return dy * (y * (1 - y));
  }
};
struct Silu : Function<"silu", Takes::floats, GradientFrom::input> {
  static constexpr bool kElementary = true;
  static constexpr bool kF16OnGpus = true;
  template <class M, class C>
  TAPESTRY_FORMULA C value(C x) {
    return x * M::sigmoid(x);
  }
  template <class M, class C>
  TAPESTRY_FORMULA C gradient(C dy, C x) {
    const C s = M::sigmoid(x);
    return dy * (s * (1 + x * (1 - s)));
  }
};
/// gelu(x) = x Phi(x), where Phi is the normal distribution function.
struct Gelu : Function<"gelu", Takes::floats, GradientFrom::input> {
  static constexpr bool kElementary = true;
  static constexpr bool kF16OnGpus = true;
  template <class M, class C>
  TAPESTRY_FORMULA C value(C x) {
    return x * M::normal_cdf(x);
  }
  template <class M, class C>
  TAPESTRY_FORMULA C gradient(C dy, C x) {
    const C scale = C(std::numbers::inv_sqrtpi / std::numbers::sqrt2);  // 1 / sqrt(2 pi)
    return dy * (M::normal_cdf(x) + x * (scale * M::exp_of_negative(C(-0.5) * (x * x))));
  }
};
/// Computes 0.5 x (1 + tanh(u)) with u = sqrt(2 / pi) (x + 0.044715 x^3). The code uses (1 + tanh(u)) / 2 =
/// sigmoid(2u).
struct GeluTanh : Function<"gelu_tanh", Takes::floats, GradientFrom::input> {
  static constexpr bool kElementary = true;
  static constexpr bool kF16OnGpus = true;
  static constexpr double kScale = 2 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi;
  template <class M, class C>
  TAPESTRY_FORMULA C value(C x) {
    return x * M::sigmoid(C(kScale) * (x + C(0.044715) * (x * x * x)));
  }
  template <class M, class C>
  TAPESTRY_FORMULA C gradient(C dy, C x) {
    const C s = M::sigmoid(C(kScale) * (x + C(0.044715) * (x * x * x)));
    const C slope = C(kScale) * (1 + C(3 * 0.044715) * (x * x));  // the derivative of 2u
    return dy * (s + x * (s * (1 - s) * slope));
  }
};

/// log(1 + exp(z)) / beta with z = beta x, and x where z > threshold (Dugas et al. 2001). log(1 + exp(z)) is
/// computed as max(z, 0) + log(1 + exp(-|z|)), which cannot overflow.
struct Softplus : Function<"softplus", Takes::floats, GradientFrom::input, 2> {
  static constexpr CastPolicy kCastOnGpus = CastPolicy::f32;
  static constexpr bool kElementary = true;
  template <class M, class C>
  TAPESTRY_FORMULA C value(C x, C beta, C threshold) {
    const C z = beta * x, above = z > 0 ? z : C(0);
    return z > threshold ? x : (above + M::log1p_of_unit(M::exp_of_negative(-M::abs(z)))) / beta;
  }
  template <class M, class C>
  TAPESTRY_FORMULA C gradient(C dy, C x, C beta, C threshold) {
    return select(beta * x > threshold, dy, dy * M::sigmoid(beta * x));
  }
};

/// x where x > 0, else slope x.
struct LeakyRelu : Function<"leaky_relu", Takes::floats, GradientFrom::input, 1> {
  template <class M, class C>
  TAPESTRY_FORMULA C value(C x, C slope) {
    return x > 0 ? x : x * slope;
  }
  template <class M, class C>
  TAPESTRY_FORMULA C gradient(C dy, C x, C slope) {
    return select(x > 0, dy, dy * slope);
  }
};
/// scale alpha (exp(rate x) - 1) where x <= 0, else scale x. elu, selu and celu are cases of it.
struct Elu : Function<"elu", Takes::floats, GradientFrom::input, 3> {
  static constexpr bool kElementary = true;
  template <class M, class C>
  TAPESTRY_FORMULA C value(C x, C alpha, C scale, C rate) {
    return scale * (x <= 0 ? alpha * M::expm1(rate * x) : x);
  }
  template <class M, class C>
  TAPESTRY_FORMULA C gradient(C dy, C x, C alpha, C scale, C rate) {
    const C below = select(x <= 0, x, C(0));
    return dy * (scale * select(x <= 0, alpha * rate * M::exp(rate * below), C(1)));
  }
};
/// x tanh(log(1 + e^x)) (Misra 2019). With n = e^x (e^x + 2), tanh(log(1 + e^x)) = n / (n + 2). It is 1
/// within the rounding error for x > 20.
struct Mish : Function<"mish", Takes::floats, GradientFrom::input> {
  static constexpr bool kElementary = true;
  template <class M, class C>
  TAPESTRY_FORMULA C value(C x) {
    const C e = M::exp(x > 20 ? C(20) : x), n = e * (e + 2);
    return x > 20 ? x : x * (n / (n + 2));
  }
  template <class M, class C>
  TAPESTRY_FORMULA C gradient(C dy, C x) {
    const C e = M::exp(select(x > 20, C(20), x)), n = e * (e + 2), t = n / (n + 2);
    const C slope = 4 * e * (e + 1) / ((n + 2) * (n + 2));  // the derivative of t
    return select(x > 20, dy, dy * (t + x * slope));
  }
};
/// x min(max(x + 3, 0), 6) / 6 (Howard et al. 2019).
struct Hardswish : Function<"hardswish", Takes::floats, GradientFrom::input> {
  template <class M, class C>
  TAPESTRY_FORMULA C value(C x) {
    const C raised = x < -3 ? C(0) : x + 3;
    return x * ((raised > 6 ? C(6) : raised) / 6);
  }
  template <class M, class C>
  TAPESTRY_FORMULA C gradient(C dy, C x) {
    return select(x <= -3, C(0), select(x < 3, dy * (x / 3 + C(0.5)), dy));
  }
};

/// min(max(x + 3, 0), 6) / 6. As in PyTorch, the gradient at -3 and 3 is 0.
struct Hardsigmoid : Function<"hardsigmoid", Takes::floats, GradientFrom::input> {
  template <class M, class C>
  TAPESTRY_FORMULA C value(C x) {
    const C raised = x < -3 ? C(0) : x + 3;
    return (raised > 6 ? C(6) : raised) / 6;
  }
  template <class M, class C>
  TAPESTRY_FORMULA C gradient(C dy, C x) {
    return select(M::abs(x) < 3, dy / 6, C(0));
  }
};

/// Replaces NaN, infinity and -infinity by other numbers. The gradient of a replaced element is 0.
struct NanToNum : Function<"nan_to_num", Takes::floats, GradientFrom::input, 3> {
  template <class M, class C>
  TAPESTRY_FORMULA C value(C x, C nan, C posinf, C neginf) {
    constexpr C infinity = std::numeric_limits<C>::infinity();
    // One selection after the other, because the compiler computes a nested one with five comparisons.
    C y = x == infinity ? posinf : x;
    y = x == -infinity ? neginf : y;
    return x != x ? nan : y;
  }
  template <class M, class C>
  TAPESTRY_FORMULA C gradient(C dy, C x, C, C, C) {
    return select(M::abs(x) < C(std::numeric_limits<float>::infinity()), dy, C(0));
  }
};

using Functions = RowList<Neg, Abs, Relu, Exp, Log, Sqrt, Rsqrt, Tanh, Sigmoid, Silu, Gelu, GeluTanh,
                          Softplus, LeakyRelu, Elu, Mish, Hardswish, Hardsigmoid, NanToNum>;

/// Computes min(max(x, low), high), so `high` wins if low > high. NaN stays NaN. A limit that is NaN gives
/// NaN. A missing limit has no effect. There is no row for clamp, because a parameter of a row is never
/// missing.
struct ClampArgs {
  Elementwise<2> operands;
  std::optional<Scalar> low, high;
};
inline constinit Slot<ClampArgs> clamp{"clamp"};
/// Computes dx = dy where low < x < high, else 0. The operands are (dx, dy, x).
struct ClampBackwardArgs {
  Elementwise<3> operands;
  std::optional<Scalar> low, high;
};
inline constinit Slot<ClampBackwardArgs> clamp_backward{"clamp_backward"};

}  // namespace tapestry::kernels
