#pragma once
// Formulas, derivatives and slots of the arithmetic of two tensors, or of a tensor and a number. f16 and bf16
// are computed in f32 and rounded once. Integers wrap around. In an in-place operation the output and an
// input are the same elements. The output never overlaps an input partly.
#include "tapestry/kernels/ops/pointwise.h"

namespace tapestry::kernels {

/// The type in which C is added and multiplied. For an integer C it is the unsigned type of the same size,
/// because signed overflow is undefined. For other types it is C.
template <class C>
using Wrapping = typename std::conditional_t<std::is_integral_v<C> && !std::is_same_v<C, bool>,
                                             std::make_unsigned<C>, std::type_identity<C>>::type;

struct Add : Pointwise<"add", 3, kAllDTypes> {
  template <class M, class C>
  TAPESTRY_FORMULA C value(C a, C b) {
    if constexpr (std::is_same_v<C, bool>) return a || b;
    else return static_cast<C>(static_cast<Wrapping<C>>(a) + static_cast<Wrapping<C>>(b));
  }
};
struct Sub : Pointwise<"sub", 3, kNumbers> {
  template <class M, class C>
  TAPESTRY_FORMULA C value(C a, C b) {
    return static_cast<C>(static_cast<Wrapping<C>>(a) - static_cast<Wrapping<C>>(b));
  }
};
struct Mul : Pointwise<"mul", 3, kAllDTypes> {
  template <class M, class C>
  TAPESTRY_FORMULA C value(C a, C b) {
    if constexpr (std::is_same_v<C, bool>) return a && b;
    else return static_cast<C>(static_cast<Wrapping<C>>(a) * static_cast<Wrapping<C>>(b));
  }
};
struct Div : Pointwise<"div", 3, kFloats> {
  template <class M, class C>
  TAPESTRY_FORMULA C value(C a, C b) {
    return a / b;
  }
};
/// The result is NaN if a or b is NaN: either a != a selects a, or both comparisons are false and select b.
struct Maximum : Pointwise<"maximum", 3, kAllDTypes> {
  template <class M, class C>
  TAPESTRY_FORMULA C value(C a, C b) {
    return a > b || a != a ? a : b;
  }
};
struct Minimum : Pointwise<"minimum", 3, kAllDTypes> {
  template <class M, class C>
  TAPESTRY_FORMULA C value(C a, C b) {
    return a < b || a != a ? a : b;
  }
};
/// Integer powers are computed by repeated squaring. A negative integer exponent gives 0, except that base 1
/// gives 1 and base -1 gives 1 or -1.
struct Pow : Pointwise<"pow", 3, kNumbers> {
  template <class M, class C>
  TAPESTRY_FORMULA C value(C a, C b) {
    if constexpr (std::is_floating_point_v<C>) {
      return M::pow(a, b);
    } else {
      if constexpr (std::is_signed_v<C>)
        if (b < 0) return a == 1 ? 1 : a == -1 ? (b % 2 ? -1 : 1) : 0;
      C result = 1;
      for (; b; b = static_cast<C>(b >> 1)) {
        if (b & 1) result = Mul::value<M>(result, a);
        a = Mul::value<M>(a, a);
      }
      return result;
    }
  }
};
using Arithmetic = RowList<Add, Sub, Mul, Div, Maximum, Minimum, Pow>;

// ---- a tensor and a number

/// The operands are (out, x). The kernel converts the number to the slot's dtype.
struct ScalarArgs {
  Elementwise<2> operands;
  Scalar scalar;
};
/// These slots compute x + s, x * s, x / s, s - x and s / x. Each takes the dtypes of the row above that does
/// the same with two tensors.
inline constinit Slot<ScalarArgs> add_scalar{"add_scalar"}, mul_scalar{"mul_scalar"},
    div_scalar{"div_scalar"}, rsub_scalar{"rsub_scalar"}, rdiv_scalar{"rdiv_scalar"};
/// Computes x^s. x^0.5 is sqrt(x), also for -0 and -inf. The slot takes all dtypes except bool.
inline constinit Slot<ScalarArgs> pow_scalar{"pow_scalar"};

/// Computes x^s in floating point. Common exponents avoid the library's pow() and are at least as accurate.
struct PowScalar {
  template <class M, class C>
  TAPESTRY_FORMULA C value(C x, C s) {
    if (s == 2) return x * x;
    if (s == 3) return x * x * x;
    if (s == 1) return x;
    if (s == -1) return 1 / x;
    if (s == C(0.5)) return M::sqrt(x);
    return M::pow(x, s);
  }
  /// Returns dy s x^(s - 1), which is 0 for s = 0.
  template <class M, class C>
  TAPESTRY_FORMULA C gradient(C dy, C x, C s) {
    if (s == 0) return 0;
    if (s == 2) return dy * (2 * x);
    if (s == 3) return dy * (3 * (x * x));
    return dy * (s * M::pow(x, s - 1));
  }
};
/// Computes dx = dy s x^(s - 1). The operands are (dx, dy, x). The dtypes are floating.
struct PowScalarBackwardArgs {
  Elementwise<3> operands;
  Scalar scalar;
};
inline constinit Slot<PowScalarBackwardArgs> pow_scalar_backward{"pow_scalar_backward"};

// ---- gradients: the operands are (output, dy, a, b)

/// The gradient of a / b with respect to b.
struct DivBackward : Pointwise<"div_backward", 4, kFloats> {
  template <class M, class C>
  TAPESTRY_FORMULA C value(C dy, C a, C b) {
    return -dy * ((a / b) / b);
  }
};
/// The gradient of a^b with respect to a: dy b a^(b - 1), which is 0 for b = 0.
struct PowBackwardBase : Pointwise<"pow_backward_base", 4, kFloats> {
  template <class M, class C>
  TAPESTRY_FORMULA C value(C dy, C a, C b) {
    return b == 0 ? C(0) : dy * (b * M::pow(a, b - 1));
  }
};
/// The gradient of a^b with respect to b: dy a^b log(a), which is 0 where a = 0 and b >= 0.
struct PowBackwardExponent : Pointwise<"pow_backward_exponent", 4, kFloats> {
  template <class M, class C>
  TAPESTRY_FORMULA C value(C dy, C a, C b) {
    return a == 0 && b >= 0 ? C(0) : dy * (M::pow(a, b) * M::exact_log(a));
  }
};
/// The gradient of maximum(a, b) with respect to a. It is dy if a > b, dy / 2 if a == b, 0 if a < b, and dy
/// if a or b is NaN.
struct MaximumBackward : Pointwise<"maximum_backward", 4, kFloats> {
  template <class M, class C>
  TAPESTRY_FORMULA C value(C dy, C a, C b) {
    return a < b ? C(0) : a == b ? dy / 2 : dy;
  }
};
struct MinimumBackward : Pointwise<"minimum_backward", 4, kFloats> {
  template <class M, class C>
  TAPESTRY_FORMULA C value(C dy, C a, C b) {
    return a > b ? C(0) : a == b ? dy / 2 : dy;
  }
};
using ArithmeticGradients =
    RowList<DivBackward, PowBackwardBase, PowBackwardExponent, MaximumBackward, MinimumBackward>;

}  // namespace tapestry::kernels
