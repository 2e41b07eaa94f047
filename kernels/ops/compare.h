#pragma once
// Formulas and slots of comparisons and choices. A comparison is called with the dtype of its inputs, and its
// output is bool. Unless a comment says otherwise, the slots take all dtypes.
#include "tapestry/kernels/ops/arithmetic.h"
#include "tapestry/kernels/ops/pointwise.h"

namespace tapestry::kernels {

inline constinit Slot<Elementwise<3>> eq{"eq"}, ne{"ne"}, lt{"lt"}, le{"le"};
/// Compare a tensor with a number. Integers and bools are compared as i64.
inline constinit Slot<ScalarArgs> eq_scalar{"eq_scalar"}, ne_scalar{"ne_scalar"}, lt_scalar{"lt_scalar"},
    le_scalar{"le_scalar"}, gt_scalar{"gt_scalar"}, ge_scalar{"ge_scalar"};

/// Takes floating dtypes. The output is bool.
inline constinit Slot<Elementwise<2>> isnan{"isnan"};
struct IsNan {
  template <class C>
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
