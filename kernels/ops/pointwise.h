#pragma once
// Pointwise operations: out = f(inputs), element by element. Each operation is a struct, its "row", which has
// its name, its dtypes, its formula and its derivatives:
//
// clang-format off
//   struct Softplus : Function<"softplus", Takes::floats, GradientFrom::input, 2> {      // of one tensor
//     template <class M, class C> TAPESTRY_FORMULA C value(C x, C beta, C threshold) {...}
//     template <class M, class C> TAPESTRY_FORMULA C gradient(C dy, C x, C beta, C threshold) {...}
//   };
//   struct Atan2 : Binary<"atan2", Takes::all_as_f32> {                                  // of two tensors
//     template <class M, class C> TAPESTRY_FORMULA C value(C a, C b) {...}
//     template <class M, class C> TAPESTRY_FORMULA C gradient_a(C dy, C a, C b) {...}
//     template <class M, class C> TAPESTRY_FORMULA C gradient_b(C dy, C a, C b) {...}
//   };
// clang-format on
//
// The rows of a family are listed in a RowList. From the list come the slots, the kernels for CPUs
// (kernels/cpu/pointwise.h) and GPUs (kernels/cuda/pointwise.cuh), and the recorded operations
// (autograd/ops/functions.cpp and autograd/ops/internal/binary.h).
//
// CPU and GPU share each formula. C is the type that the formula computes in: float for f16 and bf16, else
// the dtype's own type. M is a class with the elementary functions, which differ between devices. The CPU's
// (kernels/cpu/math.h) have no branches and no calls, so that loops over them are vectorised. The GPU's
// (kernels/cuda/math.cuh) use fast hardware instructions, and are only as accurate as the result's dtype can
// show.
#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <type_traits>

#include "tapestry/core/context.h"
#include "tapestry/core/fixed_string.h"
#include "tapestry/core/scalar.h"
#include "tapestry/kernels/slot.h"
#include "tapestry/kernels/view.h"

#ifdef __CUDACC__
#define TAPESTRY_FORMULA static __device__ __forceinline__
#else
#define TAPESTRY_FORMULA static inline
#endif

namespace tapestry::kernels {

/// The base class of all rows. `kOperandCount` includes the output. `kDTypeSet` lists the dtypes that have a
/// CPU kernel. Of these, the GPU has kernels for f32 and bf16, for f16 if the row says so or
/// kernels/cuda/arithmetic_f16.cuh lists it, and for the integers and bools that kernels/cuda/arithmetic.cu
/// and compare.cu register. `kParamCount` is the number of parameters, which are numbers that follow the
/// inputs of the formula.
template <FixedString kName, int kOperandCount, DTypeSet kDTypeSet, int kParamCount = 0>
struct Pointwise {
  static constexpr FixedString kSlotName = kName;
  static constexpr int kOperands = kOperandCount, kParams = kParamCount;
  static constexpr DTypeSet kDTypes = kDTypeSet;
  static constexpr bool kGivesBool = false;  // the output is bool; otherwise it has the slot's dtype
  // What else a row may say:
  // It computes exponentials, logarithms and the like. CPUs have wide loops for it.
  static constexpr bool kElementary = false;
  static constexpr CastPolicy kCastOnGpus = CastPolicy::none;  // what autocast does on GPUs; nothing on CPUs
  static constexpr bool kF16OnGpus = false;  // it and its gradient have f16 kernels of their own on GPUs
  static constexpr bool kTwice = true;  // its gradient has gradients, computed by operations from its formula
  /// The type of the parameters.
  template <class C>
  using Param = C;
};

/// The arguments of a pointwise kernel that has parameters.
template <int kOperands, int kParams>
struct PointwiseArgs {
  Elementwise<kOperands> operands;
  std::array<Scalar, kParams> params;
};

/// The slot of a row: kernels::slot<Relu>(device, dtype, operands).
template <class Row>
inline constinit Slot<std::conditional_t<Row::kParams == 0, Elementwise<Row::kOperands>,
                                         PointwiseArgs<Row::kOperands, std::max(Row::kParams, 1)>>>
    slot{Row::kSlotName.text};

/// a where the condition holds, else b. The formulas of gradients use it instead of ?:, because higher
/// derivatives compute them with tensors.
template <class C>
TAPESTRY_FORMULA C select(bool condition, C a, C b) {
  return condition ? a : b;
}
/// The value of another row in a gradient. Higher derivatives compute it by that row's operation.
template <class Row, class M, class... C>
TAPESTRY_FORMULA auto value_of(C... operands) {
  if constexpr ((std::is_arithmetic_v<C> && ...)) return Row::template value<M>(operands...);
  else return M::template value_of<Row>(operands...);
}

/// The dtypes that an operation takes. `all_as_f32` means that integers and bools are first converted to f32.
/// `bits` are the integers and bools.
enum class Takes : std::uint8_t { floats, integers, bits, numbers, all, all_as_f32 };
constexpr DTypeSet taken_dtypes(Takes takes) {
  switch (takes) {
    case Takes::floats:
      return kFloats;
    case Takes::integers:
      return kIntegers;
    case Takes::bits:
      return kIntegers | bit(DType::boolean);
    case Takes::numbers:
      return kNumbers;
    default:
      return kAllDTypes;
  }
}
/// The dtypes for which such an operation has kernels.
constexpr DTypeSet kernel_dtypes(Takes takes) {
  return takes == Takes::all_as_f32 ? kFloats : taken_dtypes(takes);
}

// ---- functions of one tensor

/// The tensor that the gradient of a function is computed from, besides the incoming gradient dy. With
/// `neither`, the gradient is computed from dy alone. With `zero`, the gradient is 0 everywhere.
enum class GradientFrom : std::uint8_t { input, output, neither, zero };

/// A row for a function of one tensor. The function `gradient(dy, t)` computes the gradient of the input,
/// where t is the function's input or output. C is float or double in kernels. In a pass with create_graph it
/// is a FormulaTerm (autograd/ops/internal/composed.h), so the formula of a gradient is written with
/// operators, M and select() only. select() computes both branches: one that is infinite or NaN makes the
/// gradient NaN. If the gradient is another row's value, the row names that row instead: `using Gradient =
/// Mul;`.
template <FixedString kName, Takes kTake, GradientFrom kFrom, int kParamCount = 0>
struct Function : Pointwise<kName, 2, kernel_dtypes(kTake), kParamCount> {
  static constexpr Takes kTakes = kTake;
  static constexpr GradientFrom kGradientFrom = kFrom;
};

/// A row for a function of floats that is constant between its steps, such as floor.
template <FixedString kName>
struct Step : Function<kName, Takes::floats, GradientFrom::zero> {
  using Gradient = void;
};

/// The row of a function's derivative, which is called "<name>_backward".
template <class F>
struct GradientOf : Pointwise<F::kSlotName + "_backward", 3, kFloats, F::kParams> {
  static constexpr bool kF16OnGpus = F::kF16OnGpus;
  template <class M, class C, class... Params>
  TAPESTRY_FORMULA C value(C dy, C t, Params... params) {
    return F::template gradient<M>(dy, t, params...);
  }
};
namespace detail {
template <class F>
struct GradientRow {
  using type = GradientOf<F>;
};
template <class F>
requires requires { typename F::Gradient; }
struct GradientRow<F> {
  using type = typename F::Gradient;
};
}  // namespace detail
template <class F>
using GradientRowOf = typename detail::GradientRow<F>::type;
/// True if the row has a gradient() of its own, which then needs kernels.
template <class F>
inline constexpr bool kHasOwnGradient = std::is_same_v<GradientRowOf<F>, GradientOf<F>>;

// ---- operations of two tensors a and b, or of a tensor and a number

/// The operand that may be a number instead of a tensor.
enum class Number : std::uint8_t { none, second, either };

/// A row for an operation of two tensors. Its functions `gradient_a(dy, a, b)` and `gradient_b(dy, a, b)`
/// compute the gradients of the inputs. A row may define a gradient without such a function, by
/// `using GradientA = ...;` or `using GradientB = ...;`:
///   Dy                                  the gradient is dy itself
///   ValueOf<Mul, Of::dy, Of::b>         the gradient is the value of the row Mul for the operands dy and b
///   ValueOf<BackwardA<Maximum>, ...>    the gradient is Maximum's gradient_a() of other operands
///   void                                the input has no gradient; only comparisons use it
/// Backward saves only the operands that a gradient names. It sums gradients over broadcast dimensions and
/// converts them to the inputs' dtypes.
template <FixedString kName, Takes kTake, Number kMayBe = Number::none>
struct Binary : Pointwise<kName, 3, kernel_dtypes(kTake)> {
  static constexpr Takes kTakes = kTake;
  static constexpr Number kNumber = kMayBe;
};

/// A row for a comparison of two tensors, or of a tensor and a number. The output is bool and has no
/// gradient. Integers and bools are compared with a number as i64, because the number need not fit their
/// dtype.
template <FixedString kName>
struct Comparison : Binary<kName, Takes::all, Number::second> {
  static constexpr bool kGivesBool = true;
  template <class C>
  using Param = std::conditional_t<std::is_integral_v<C>, std::int64_t, C>;
  using GradientA = void;
  using GradientB = void;
};

/// The operands that a gradient may be computed from: the incoming gradient, the inputs, and the output.
enum class Of : std::uint8_t { dy, a, b, y };

/// A gradient that is the value of Row for these operands. The first operand is dy.
template <class R, Of... kOf>
struct ValueOf {
  using Row = R;
  static constexpr bool uses(Of operand) { return ((kOf == operand) || ...); }
  /// Returns the index at which Row's formula takes this operand. For example, if the row takes (dy, b), the
  /// index of b is 1.
  static constexpr int position(Of operand) {
    const Of all[] = {kOf...};
    int i = 0;
    while (all[i] != operand) ++i;
    return i;
  }
};
/// A gradient that is dy itself.
struct Dy {
  static constexpr bool uses(Of) { return false; }
};

/// The rows of gradient_a() and gradient_b(), which are called "<name>_backward_a" and "<name>_backward_b".
template <class Row>
struct BackwardA : Pointwise<Row::kSlotName + "_backward_a", 4, kFloats> {
  template <class M, class C>
  TAPESTRY_FORMULA C value(C dy, C a, C b) {
    return Row::template gradient_a<M>(dy, a, b);
  }
};
template <class Row>
struct BackwardB : Pointwise<Row::kSlotName + "_backward_b", 4, kFloats> {
  template <class M, class C>
  TAPESTRY_FORMULA C value(C dy, C a, C b) {
    return Row::template gradient_b<M>(dy, a, b);
  }
};
namespace detail {
template <class Row>
struct GradientA : std::type_identity<ValueOf<BackwardA<Row>, Of::dy, Of::a, Of::b>> {};
template <class Row>
requires requires { typename Row::GradientA; }
struct GradientA<Row> : std::type_identity<typename Row::GradientA> {};
template <class Row>
struct GradientB : std::type_identity<ValueOf<BackwardB<Row>, Of::dy, Of::a, Of::b>> {};
template <class Row>
requires requires { typename Row::GradientB; }
struct GradientB<Row> : std::type_identity<typename Row::GradientB> {};

template <class Row, int kInput>
constexpr auto name_with_number() {
  if constexpr (kInput == Row::kOperands - 2) return Row::kSlotName + "_scalar";
  else return Row::kSlotName + "_scalar_first";
}
}  // namespace detail
/// ValueOf<...> or Dy, or void in a comparison, which has no gradient.
template <class Row>
using GradientAOf = typename detail::GradientA<Row>::type;
template <class Row>
using GradientBOf = typename detail::GradientB<Row>::type;

/// The form of a row in which input `kInput` is a number. The number is the form's parameter. WithNumber<Sub,
/// 0> computes s - x and is called "sub_scalar_first"; WithNumber<Sub, 1> computes x - s and is called
/// "sub_scalar". If Row is a gradient with the inputs dy, a and b, the number is a or b.
template <class Row, int kInput>
struct WithNumber : Pointwise<detail::name_with_number<Row, kInput>(), Row::kOperands - 1, Row::kDTypes, 1> {
  static constexpr bool kGivesBool = Row::kGivesBool;
  template <class C>
  using Param = typename Row::template Param<C>;

  template <class M, class C, class S>
  TAPESTRY_FORMULA auto value(C x, S s) {
    if constexpr (kInput == 0) return Row::template value<M>(s, static_cast<S>(x));
    else return Row::template value<M>(static_cast<S>(x), s);
  }
  template <class M, class C>
  TAPESTRY_FORMULA C value(C dy, C t, C s) {
    if constexpr (kInput == 1) return Row::template value<M>(dy, s, t);
    else return Row::template value<M>(dy, t, s);
  }
};

// ---- families

/// All rows of a family.
template <class... Rows>
struct RowList {};

/// RowNamed<"exp", Functions>::type is the function Exp.
template <FixedString kName, class List>
struct RowNamed;
template <FixedString kName, class First, class... Rest>
struct RowNamed<kName, RowList<First, Rest...>>
    : std::conditional_t<First::kSlotName.view() == kName.view(), std::type_identity<First>,
                         RowNamed<kName, RowList<Rest...>>> {};

/// The rows of both lists.
template <class A, class B>
struct Joined;
template <class... A, class... B>
struct Joined<RowList<A...>, RowList<B...>> : std::type_identity<RowList<A..., B...>> {};

/// The position of a row in the list.
template <class Row, class... Rows>
constexpr int position_in(RowList<Rows...>) {
  int position = 0;
  static_cast<void>(((std::is_same_v<Row, Rows> || (++position, false)) || ...));
  return position;
}

/// Calls `f.template operator()<Row>()` for each row.
template <class... Rows, class F>
bool for_rows_of(RowList<Rows...>, F&& f) {
  (f.template operator()<Rows>(), ...);
  return true;
}

/// True if an operation of two tensors has a gradient_a() or gradient_b() of its own, which then needs
/// kernels.
template <class Row>
inline constexpr bool kHasOwnGradientA =
    std::is_same_v<GradientAOf<Row>, ValueOf<BackwardA<Row>, Of::dy, Of::a, Of::b>>;
template <class Row>
inline constexpr bool kHasOwnGradientB =
    std::is_same_v<GradientBOf<Row>, ValueOf<BackwardB<Row>, Of::dy, Of::a, Of::b>>;

/// False for comparisons and operations on bits, which define both gradients as void.
template <class Row>
inline constexpr bool kDifferentiable = true;
template <class Row>
requires requires { Row::kNumber; }
inline constexpr bool kDifferentiable<Row> = !std::is_void_v<GradientAOf<Row>>;

/// OwnGradients<List>::type has the gradients of the rows that need kernels of their own.
template <class List>
struct OwnGradients : std::type_identity<RowList<>> {};
template <class First, class... Rest>
requires requires { First::kGradientFrom; }
struct OwnGradients<RowList<First, Rest...>>
    : Joined<std::conditional_t<kHasOwnGradient<First>, RowList<GradientOf<First>>, RowList<>>,
             typename OwnGradients<RowList<Rest...>>::type> {};
template <class First, class... Rest>
requires requires { First::kNumber; }
struct OwnGradients<RowList<First, Rest...>>
    : Joined<typename Joined<
                 std::conditional_t<kHasOwnGradientA<First>, RowList<BackwardA<First>>, RowList<>>,
                 std::conditional_t<kHasOwnGradientB<First>, RowList<BackwardB<First>>, RowList<>>>::type,
             typename OwnGradients<RowList<Rest...>>::type> {};

/// Calls `f.template operator()<R>()` for a row and for the rows that are derived from it and need kernels
/// too: its gradients, and its forms with a number.
template <class Row, class F>
void for_row_and_derived(F&& f) {
  f.template operator()<Row>();
  if constexpr (requires { Row::kGradientFrom; }) {
    if constexpr (kHasOwnGradient<Row>) f.template operator()<GradientOf<Row>>();
  } else if constexpr (requires { Row::kNumber; }) {
    constexpr bool own_a = kHasOwnGradientA<Row>, own_b = kHasOwnGradientB<Row>;
    if constexpr (own_a) f.template operator()<BackwardA<Row>>();
    if constexpr (own_b) f.template operator()<BackwardB<Row>>();
    if constexpr (Row::kNumber != Number::none) {
      f.template operator()<WithNumber<Row, 1>>();
      if constexpr (own_a) f.template operator()<WithNumber<BackwardA<Row>, 2>>();
    }
    if constexpr (Row::kNumber == Number::either) {
      f.template operator()<WithNumber<Row, 0>>();
      if constexpr (own_b) f.template operator()<WithNumber<BackwardB<Row>, 1>>();
    }
  }
}
/// Calls for_row_and_derived() for each row of the list.
template <class... Rows, class F>
bool for_kernels_of(RowList<Rows...>, F&& f) {
  (for_row_and_derived<Rows>(f), ...);
  return true;
}

}  // namespace tapestry::kernels
