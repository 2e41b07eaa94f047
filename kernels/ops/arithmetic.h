#pragma once
// Rows of the arithmetic of two tensors, or of a tensor and a number. f16 and bf16 are computed in f32 and
// rounded once. Integers wrap around. In an in-place operation the output and an input are the same elements.
// The output never overlaps an input partly.
#include "tapestry/kernels/ops/pointwise.h"

namespace tapestry::kernels {

struct Neg;  // kernels/ops/functions.h

/// The type in which C is added and multiplied. For an integer C it is the unsigned type of the same size,
/// because signed overflow is undefined. For other types it is C.
template <class C>
using Wrapping = typename std::conditional_t<std::is_integral_v<C> && !std::is_same_v<C, bool>,
                                             std::make_unsigned<C>, std::type_identity<C>>::type;

/// x < 0, for which nvcc would warn if C is unsigned.
template <class C>
TAPESTRY_FORMULA bool is_negative(C x) {
  if constexpr (std::is_unsigned_v<C>) return false;
  else return x < 0;
}

struct Add : Binary<"add", Takes::all, Number::second> {
  using GradientA = Dy;
  using GradientB = Dy;
  template <class M, class C>
  TAPESTRY_FORMULA C value(C a, C b) {
    if constexpr (std::is_same_v<C, bool>) return a || b;
    else return static_cast<C>(static_cast<Wrapping<C>>(a) + static_cast<Wrapping<C>>(b));
  }
};
struct Sub : Binary<"sub", Takes::numbers, Number::either> {
  using GradientA = Dy;
  using GradientB = ValueOf<Neg, Of::dy>;
  template <class M, class C>
  TAPESTRY_FORMULA C value(C a, C b) {
    return static_cast<C>(static_cast<Wrapping<C>>(a) - static_cast<Wrapping<C>>(b));
  }
};
struct Mul : Binary<"mul", Takes::all, Number::second> {
  using GradientA = ValueOf<Mul, Of::dy, Of::b>;
  using GradientB = ValueOf<Mul, Of::dy, Of::a>;
  template <class M, class C>
  TAPESTRY_FORMULA C value(C a, C b) {
    if constexpr (std::is_same_v<C, bool>) return a && b;
    else return static_cast<C>(static_cast<Wrapping<C>>(a) * static_cast<Wrapping<C>>(b));
  }
};
/// s / x is WithNumber<Div, 0>. autograd/ops/arithmetic.cpp records it by hand with the gradient -(dy y) / x.
/// If |dy| <= 1, that does not overflow before the result does, and gradient_b() may.
struct Div : Binary<"div", Takes::all_as_f32, Number::second> {
  using GradientA = ValueOf<Div, Of::dy, Of::b>;
  template <class M, class C>
  TAPESTRY_FORMULA C value(C a, C b) {
    return a / b;
  }
  template <class M, class C>
  TAPESTRY_FORMULA C gradient_b(C dy, C a, C b) {
    return -dy * ((a / b) / b);
  }
};
/// The result is NaN if a or b is NaN: either a != a selects a, or both comparisons are false and select b.
struct Maximum : Binary<"maximum", Takes::all> {
  template <class M, class C>
  TAPESTRY_FORMULA C value(C a, C b) {
    return a > b || a != a ? a : b;
  }
  /// The result is dy if a > b, dy / 2 if a == b, 0 if a < b, and dy if a or b is NaN.
  template <class M, class C>
  TAPESTRY_FORMULA C gradient_a(C dy, C a, C b) {
    return select(a < b, C(0), select(a == b, dy / 2, dy));
  }
  using GradientB = ValueOf<BackwardA<Maximum>, Of::dy, Of::b, Of::a>;
};
struct Minimum : Binary<"minimum", Takes::all> {
  template <class M, class C>
  TAPESTRY_FORMULA C value(C a, C b) {
    return a < b || a != a ? a : b;
  }
  template <class M, class C>
  TAPESTRY_FORMULA C gradient_a(C dy, C a, C b) {
    return select(a > b, C(0), select(a == b, dy / 2, dy));
  }
  using GradientB = ValueOf<BackwardA<Minimum>, Of::dy, Of::b, Of::a>;
};
/// Integer powers are computed by repeated squaring. A negative integer exponent gives 0, except that base 1
/// gives 1 and base -1 gives 1 or -1.
struct Pow : Binary<"pow", Takes::numbers> {
  static constexpr CastPolicy kCastOnGpus = CastPolicy::f32;
  static constexpr bool kElementary = true;
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
  /// Computes dy b a^(b - 1), which is 0 for b = 0.
  template <class M, class C>
  TAPESTRY_FORMULA C gradient_a(C dy, C a, C b) {
    return select(b == 0, C(0), dy * (b * M::pow(a, b - 1)));
  }
  /// Computes dy a^b log(a), which is 0 where a = 0 and b >= 0.
  template <class M, class C>
  TAPESTRY_FORMULA C gradient_b(C dy, C a, C b) {
    const auto none = a == 0 && b >= 0;
    return select(none, C(0), dy * (M::pow(a, b) * M::exact_log(select(none, C(1), a))));
  }
};
/// The angle of the point (b, a) in radians, in [-pi, pi]. At the origin both gradients are 0, as in PyTorch.
struct Atan2 : Binary<"atan2", Takes::all_as_f32> {
  static constexpr CastPolicy kCastOnGpus = CastPolicy::promote;
  static constexpr bool kElementary = true;
  template <class M, class C>
  TAPESTRY_FORMULA C value(C a, C b) {
    return M::atan2(a, b);
  }
  template <class M, class C>
  TAPESTRY_FORMULA C gradient_a(C dy, C a, C b) {
    const C square = a * a + b * b;
    return select(square == 0, C(0), dy * (b / select(square == 0, C(1), square)));
  }
  template <class M, class C>
  TAPESTRY_FORMULA C gradient_b(C dy, C a, C b) {
    const C square = a * a + b * b;
    return select(square == 0, C(0), -dy * (a / select(square == 0, C(1), square)));
  }
};

/// Computes a - b trunc(a / b), which has the sign of a. Integers give 0 for b = 0, as the CPU's operation
/// has already thrown then.
struct Fmod : Binary<"fmod", Takes::numbers> {
  using GradientA = Dy;
  template <class M, class C>
  TAPESTRY_FORMULA C value(C a, C b) {
    if constexpr (std::is_floating_point_v<C>) return M::fmod(a, b);
    else if constexpr (std::is_signed_v<C>) return b == 0 || b == -1 ? C(0) : static_cast<C>(a % b);
    else return b == 0 ? C(0) : static_cast<C>(a % b);
  }
  template <class M, class C>
  TAPESTRY_FORMULA C gradient_b(C dy, C a, C b) {
    return -dy * M::trunc(a / b);
  }
};
/// Computes floor(a / b). For floats, a / b is corrected by the remainder as in Python, so that the result is
/// the floor of the exact quotient. Integers give 0 for b = 0. The gradients are 0.
struct FloorDivide : Binary<"floor_divide", Takes::numbers> {
  using GradientA = void;
  using GradientB = void;
  template <class M, class C>
  TAPESTRY_FORMULA C value(C a, C b) {
    if constexpr (std::is_floating_point_v<C>) {
      const C r = M::fmod(a, b), exact = (a - r) / b;
      const C q = r != 0 && (r < 0) != (b < 0) ? exact - 1 : exact;
      const C whole = M::floor(q), rounded = q - whole > C(0.5) ? whole + 1 : whole;
      return b == 0 ? a / b : q == 0 ? M::copysign(C(0), a / b) : rounded;
    } else if constexpr (std::is_signed_v<C>) {
      if (b == 0) return 0;
      if (b == -1) return static_cast<C>(Wrapping<C>(0) - static_cast<Wrapping<C>>(a));
      return static_cast<C>(a / b - (a % b != 0 && (a < 0) != (b < 0)));
    } else {
      return b == 0 ? C(0) : static_cast<C>(a / b);
    }
  }
};
/// Computes a - b floor(a / b), which has the sign of b.
struct Remainder : Binary<"remainder", Takes::numbers> {
  using GradientA = Dy;
  template <class M, class C>
  TAPESTRY_FORMULA C value(C a, C b) {
    const C r = Fmod::value<M>(a, b);
    return r != 0 && is_negative(r) != is_negative(b) ? static_cast<C>(r + b) : r;
  }
  template <class M, class C>
  TAPESTRY_FORMULA C gradient_b(C dy, C a, C b) {
    return -dy * value_of<FloorDivide, M>(a, b);
  }
};
/// Computes a log(b), which is 0 where a = 0, unless b is NaN.
struct Xlogy : Binary<"xlogy", Takes::all_as_f32> {
  static constexpr bool kElementary = true;
  template <class M, class C>
  TAPESTRY_FORMULA C value(C a, C b) {
    return a == 0 && b == b ? C(0) : a * M::log(b);
  }
  template <class M, class C>
  TAPESTRY_FORMULA C gradient_a(C dy, C a, C b) {
    return select(a == 0 && b <= 0, C(0), value_of<Xlogy, M>(dy, b));
  }
  template <class M, class C>
  TAPESTRY_FORMULA C gradient_b(C dy, C a, C b) {
    return dy * (a / b);
  }
};

/// sqrt(a^2 + b^2). The larger operand is factored out, so that no square overflows or underflows. Infinite
/// if an operand is, even if the other is NaN, as in IEEE 754.
struct Hypot : Binary<"hypot", Takes::floats> {
  static constexpr bool kElementary = true;
  template <class M, class C>
  TAPESTRY_FORMULA C value(C a, C b) {
    const C x = M::abs(a), y = M::abs(b), high = x > y ? x : y, low = x > y ? y : x;
    const C ratio = low / high, length = high * M::sqrt(1 + ratio * ratio);
    constexpr C infinity = std::numeric_limits<C>::infinity();
    return x == infinity || y == infinity ? infinity : high == 0 ? high + low : length;
  }
  template <class M, class C>
  TAPESTRY_FORMULA C gradient_a(C dy, C a, C b) {
    return dy * (a / value_of<Hypot, M>(a, b));
  }
  template <class M, class C>
  TAPESTRY_FORMULA C gradient_b(C dy, C a, C b) {
    return dy * (b / value_of<Hypot, M>(a, b));
  }
};
/// log(e^a + e^b). The larger operand is factored out.
struct LogAddExp : Binary<"logaddexp", Takes::floats> {
  static constexpr bool kElementary = true;
  template <class M, class C>
  TAPESTRY_FORMULA C value(C a, C b) {
    const C high = a > b ? a : b, sum = high + M::log1p(M::exp_of_negative(-M::abs(a - b)));
    return a == b ? a + std::numbers::ln2_v<C> : sum;  // also where both are infinite
  }
  template <class M, class C>
  TAPESTRY_FORMULA C gradient_a(C dy, C a, C b) {
    // The difference of two infinities is NaN.
    const auto same = a == b && M::abs(a) == C(std::numeric_limits<float>::infinity());
    return select(same, dy / 2, dy * M::sigmoid(a - b));
  }
  template <class M, class C>
  TAPESTRY_FORMULA C gradient_b(C dy, C a, C b) {
    return gradient_a<M>(dy, b, a);
  }
};

/// The base class of operations on the bits of integers and bools, which have no gradient.
template <FixedString kName, Takes kTake>
struct Bitwise : Binary<kName, kTake> {
  using GradientA = void;
  using GradientB = void;
};
struct BitAnd : Bitwise<"bitwise_and", Takes::bits> {
  template <class M, class C>
  TAPESTRY_FORMULA C value(C a, C b) {
    return static_cast<C>(a & b);
  }
};
struct BitOr : Bitwise<"bitwise_or", Takes::bits> {
  template <class M, class C>
  TAPESTRY_FORMULA C value(C a, C b) {
    return static_cast<C>(a | b);
  }
};
struct BitXor : Bitwise<"bitwise_xor", Takes::bits> {
  template <class M, class C>
  TAPESTRY_FORMULA C value(C a, C b) {
    return static_cast<C>(a ^ b);
  }
};
/// True if a shift by b moves all bits of C out: b is negative, or at least the number of bits.
template <class C>
TAPESTRY_FORMULA bool moves_all_bits(C b) {
  return is_negative(b) || b >= static_cast<C>(8 * sizeof(C));
}
struct ShiftLeft : Bitwise<"bitwise_left_shift", Takes::integers> {
  template <class M, class C>
  TAPESTRY_FORMULA C value(C a, C b) {
    return moves_all_bits(b) ? C(0) : static_cast<C>(static_cast<Wrapping<C>>(a) << b);
  }
};
/// The bits that come in are copies of the sign.
struct ShiftRight : Bitwise<"bitwise_right_shift", Takes::integers> {
  template <class M, class C>
  TAPESTRY_FORMULA C value(C a, C b) {
    return moves_all_bits(b) ? C(is_negative(a) ? -1 : 0) : static_cast<C>(a >> b);
  }
};

using Arithmetic = RowList<Add, Sub, Mul, Div, Maximum, Minimum, Pow, Atan2>;
/// The rows below share kernels on GPUs, which select the row at run time: one list for floats, one for
/// integers.
using RareArithmetic = RowList<Fmod, Remainder, FloorDivide, Xlogy, Hypot, LogAddExp>;
using RareIntegers = RowList<Fmod, Remainder, FloorDivide, BitAnd, BitOr, BitXor, ShiftLeft, ShiftRight>;
using BitOperations = RowList<BitAnd, BitOr, BitXor, ShiftLeft, ShiftRight>;

/// Computes x^s for a number s. x^0.5 is sqrt(x), also for -0 and -inf. Common exponents avoid the library's
/// pow() and are at least as accurate. These formulas are rows of their own because Pow has no such cases.
struct PowScalar : Pointwise<"pow_scalar", 2, kNumbers, 1> {
  template <class M, class C>
  TAPESTRY_FORMULA C value(C x, C s) {
    if constexpr (std::is_floating_point_v<C>) {
      if (s == 2) return x * x;
      if (s == 3) return x * x * x;
      if (s == 1) return x;
      if (s == -1) return 1 / x;
      if (s == C(0.5)) return M::sqrt(x);
    }
    return Pow::value<M>(x, s);
  }
};
/// Computes dx = dy s x^(s - 1), which is 0 for s = 0. The inputs are dy and x.
struct PowScalarBackward : Pointwise<"pow_scalar_backward", 3, kFloats, 1> {
  template <class M, class C>
  TAPESTRY_FORMULA C value(C dy, C x, C s) {
    if (s == 0) return 0;
    if (s == 2) return dy * (2 * x);
    if (s == 3) return dy * (3 * (x * x));
    return dy * (s * M::pow(x, s - 1));
  }
};

}  // namespace tapestry::kernels
