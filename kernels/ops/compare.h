#pragma once
// Rows of comparisons, and contracts of isclose and of choices. A kernel here has the dtype of its inputs,
// also if its output is bool. Unless a comment says otherwise, the slots take all dtypes.
#include "tapestry/kernels/ops/pointwise.h"

namespace tapestry::kernels {

struct Eq : Comparison<"eq"> {
  template <class M, class C>
  TAPESTRY_FORMULA bool value(C a, C b) {
    return a == b;
  }
};
struct Ne : Comparison<"ne"> {
  template <class M, class C>
  TAPESTRY_FORMULA bool value(C a, C b) {
    return a != b;
  }
};
struct Lt : Comparison<"lt"> {
  template <class M, class C>
  TAPESTRY_FORMULA bool value(C a, C b) {
    return a < b;
  }
};
struct Le : Comparison<"le"> {
  template <class M, class C>
  TAPESTRY_FORMULA bool value(C a, C b) {
    return a <= b;
  }
};
struct Gt : Comparison<"gt"> {
  template <class M, class C>
  TAPESTRY_FORMULA bool value(C a, C b) {
    return a > b;
  }
};
struct Ge : Comparison<"ge"> {
  template <class M, class C>
  TAPESTRY_FORMULA bool value(C a, C b) {
    return a >= b;
  }
};
using Comparisons = RowList<Eq, Ne, Lt, Le, Gt, Ge>;

/// Takes floating dtypes. autograd/ops/compare.cpp answers for integers and bools, which are never NaN.
struct IsNan : Pointwise<"isnan", 2, kFloats> {
  static constexpr bool kGivesBool = true;
  template <class M, class C>
  TAPESTRY_FORMULA bool value(C x) {
    return x != x;
  }
};

/// out (bool) = |a - b| <= atol + rtol |b|, or a == b, or (equal_nan) both are NaN. Computed in f64.
struct IsCloseArgs {
  Elementwise<3> operands;
  double rtol, atol;
  bool equal_nan;
};
inline constinit Slot<IsCloseArgs> isclose{"isclose"};
struct IsClose {
  template <class C>
  TAPESTRY_FORMULA bool value(C x, C y, double rtol, double atol, bool equal_nan) {
    if (x == y) return true;
    const auto a = static_cast<double>(x), b = static_cast<double>(y);
    if (equal_nan && a != a && b != b) return true;
    // Infinities are not close to anything else: an infinite b would allow any difference.
    constexpr double largest = std::numeric_limits<double>::max();
    const double difference = a > b ? a - b : b - a, allowed = rtol * b;
    return a >= -largest && a <= largest && b >= -largest && b <= largest &&
           difference <= atol + (allowed < 0 ? -allowed : allowed);
  }
};

/// Computes out = condition ? a : b. The operands are (out, condition, a, b). The condition is bool and is
/// read as bytes. The slot's dtype is that of out, a and b.
inline constinit Slot<Elementwise<4>> where{"where"};
struct Where {
  template <class C>
  TAPESTRY_FORMULA C value(std::uint8_t condition, C a, C b) {
    return condition ? a : b;
  }
};

/// Computes out = (condition == keep) ? x : 0. The operands are (out, condition, x).
struct MaskedArgs {
  Elementwise<3> operands;
  bool keep;
};
inline constinit Slot<MaskedArgs> masked{"masked"};
struct Masked {
  template <class C>
  TAPESTRY_FORMULA C value(std::uint8_t condition, C x, bool keep) {
    return (condition != 0) == keep ? x : C(0);
  }
};

}  // namespace tapestry::kernels
