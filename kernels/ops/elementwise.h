#pragma once
// Contracts of the elementwise kernels. Operand 0 is the output. Unless a slot says otherwise, all operands
// have the dtype that the slot is called with; f16 and bf16 are computed in f32 and rounded once; integers
// wrap around. The output may be the very elements of an input (in-place operations), but never overlaps one
// partly.
#include <optional>

#include "tapestry/core/scalar.h"
#include "tapestry/kernels/slot.h"
#include "tapestry/kernels/view.h"

namespace tapestry::kernels {

using UnarySlot = Slot<void(const Elementwise<2>&)>;           // out = f(x)
using BinarySlot = Slot<void(const Elementwise<3>&)>;          // out = f(a, b)
using TernarySlot = Slot<void(const Elementwise<4>&)>;         // out = f(a, b, c)
using ScalarSlot = Slot<void(const Elementwise<2>&, Scalar)>;  // out = f(x, s), s converted to the dtype

// ---- arithmetic. All dtypes: add (bool: or), mul (bool: and), maximum, minimum. Numbers: sub, pow. Floats:
// div.
inline constinit BinarySlot add{"add"}, sub{"sub"}, mul{"mul"}, div{"div"};
inline constinit BinarySlot maximum{"maximum"}, minimum{"minimum"};  // NaN wins
/// Integers: by squaring; a negative exponent gives 0 (1 for base 1, +-1 for base -1).
inline constinit BinarySlot pow{"pow"};
/// x + s, x * s, x / s, s - x, s / x, x^s; dtypes as above. x^0.5 is sqrt(x), also for -0 and -inf.
inline constinit ScalarSlot add_scalar{"add_scalar"}, mul_scalar{"mul_scalar"}, div_scalar{"div_scalar"},
    rsub_scalar{"rsub_scalar"}, rdiv_scalar{"rdiv_scalar"}, pow_scalar{"pow_scalar"};

// ---- functions. Numbers: neg, abs, relu, clamp. Floats: the others.
inline constinit UnarySlot neg{"neg"}, abs{"abs"}, relu{"relu"};  // relu keeps NaN
inline constinit UnarySlot exp{"exp"}, log{"log"}, sqrt{"sqrt"}, rsqrt{"rsqrt"}, tanh{"tanh"},
    sigmoid{"sigmoid"}, silu{"silu"};
/// x Phi(x) by erf, and 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).
inline constinit UnarySlot gelu{"gelu"}, gelu_tanh{"gelu_tanh"};
/// min(max(x, lo), hi): hi wins if lo > hi; NaN stays. An absent limit does not limit.
inline constinit Slot<void(const Elementwise<2>&, std::optional<Scalar> lo, std::optional<Scalar> hi)> clamp{
    "clamp"};

// ---- gradients, fused. Floats.
/// out = dx from (dy, y)
inline constinit BinarySlot relu_backward{"relu_backward"}, tanh_backward{"tanh_backward"},
    sigmoid_backward{"sigmoid_backward"}, sqrt_backward{"sqrt_backward"}, rsqrt_backward{"rsqrt_backward"};
/// out = dx from (dy, x). abs: dy sign(x), 0 at 0.
inline constinit BinarySlot gelu_backward{"gelu_backward"}, gelu_tanh_backward{"gelu_tanh_backward"},
    silu_backward{"silu_backward"}, abs_backward{"abs_backward"};
/// out = dy where lo < x < hi, else 0; operands (dy, x).
inline constinit Slot<void(const Elementwise<3>&, std::optional<Scalar> lo, std::optional<Scalar> hi)>
    clamp_backward{"clamp_backward"};
/// out = dy s x^(s - 1), 0 for s = 0; operands (dy, x).
inline constinit Slot<void(const Elementwise<3>&, Scalar s)> pow_scalar_backward{"pow_scalar_backward"};
/// out = db = -dy a / b^2; operands (dy, a, b).
inline constinit TernarySlot div_backward{"div_backward"};
/// out = da = dy b a^(b - 1), 0 for b = 0; operands (dy, a, b).
inline constinit TernarySlot pow_backward_base{"pow_backward_base"};
/// out = db = dy a^b log(a), 0 where a = 0 and b >= 0; operands (dy, a, b).
inline constinit TernarySlot pow_backward_exponent{"pow_backward_exponent"};
/// out = da = dy, dy / 2 or 0 as a is above, equal to or below b (maximum), or the other way round (minimum);
/// dy where either is NaN. Operands (dy, a, b).
inline constinit TernarySlot maximum_backward{"maximum_backward"}, minimum_backward{"minimum_backward"};

// ---- comparison and choice. All dtypes: that of the inputs; the output is bool. The scalar forms compare
// integers and bools with s as an i64.
inline constinit BinarySlot eq{"eq"}, ne{"ne"}, lt{"lt"}, le{"le"};
inline constinit ScalarSlot eq_scalar{"eq_scalar"}, ne_scalar{"ne_scalar"}, lt_scalar{"lt_scalar"},
    le_scalar{"le_scalar"}, gt_scalar{"gt_scalar"}, ge_scalar{"ge_scalar"};
/// Floats; the output is bool.
inline constinit UnarySlot isnan{"isnan"};
/// out (bool) = |a - b| <= atol + rtol |b|, or a == b, or (equal_nan) both are NaN; computed in f64.
inline constinit Slot<void(const Elementwise<3>&, double rtol, double atol, bool equal_nan)> isclose{
    "isclose"};
/// out = condition ? a : b; operands (condition, a, b); condition is bool, the dtype that of the others.
inline constinit TernarySlot where{"where"};
/// out = condition == keep ? x : 0; operands (condition, x).
inline constinit Slot<void(const Elementwise<3>&, bool keep)> masked{"masked"};

}  // namespace tapestry::kernels
