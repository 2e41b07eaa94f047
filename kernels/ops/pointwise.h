#pragma once
// Pointwise operations: out = f(inputs), element by element. Each one is a struct, its "row", which says
// everything about it:
//
// clang-format off
//   struct Softplus : Function<"softplus", Takes::floats, GradientFrom::input, 2> {
//     template <class M, class C> TAPESTRY_FORMULA C value(C x, C beta, C threshold) {...}
//     template <class M, class C> TAPESTRY_FORMULA C gradient(C dy, C x, C beta, C threshold) {...}
//   };
// clang-format on
//
// The rows of a family are listed in a RowList. From the list come the slots and the kernels for CPUs
// (kernels/cpu/pointwise.h) and GPUs (kernels/cuda/pointwise.cuh). Functions of one tensor also get their Op
// from it (autograd/ops/functions.cpp).
//
// CPU and GPU share each formula. C is the type that it computes in: float for f16 and bf16, else the dtype's
// own type. M is a class with the elementary functions, which differ between devices. The CPU's
// (kernels/cpu/math.h) have no branches and no calls, so that loops over them are vectorised. The GPU's
// (kernels/cuda/math.cuh) use fast hardware instructions, and are only as accurate as the result's dtype can
// show.
#include <algorithm>
#include <limits>
#include <optional>
#include <type_traits>

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
/// CPU kernel. Of these, the GPU has kernels for f32 and bf16, and for the integers that
/// kernels/cuda/arithmetic.cu registers. `kParamCount` is the number of parameters that follow the inputs of
/// the formula.
template <FixedString kName, int kOperandCount, DTypeSet kDTypeSet, int kParamCount = 0>
struct Pointwise {
  static constexpr FixedString kSlotName = kName;
  static constexpr int kOperands = kOperandCount, kParams = kParamCount;
  static constexpr DTypeSet kDTypes = kDTypeSet;
};

/// The arguments of a pointwise kernel that has parameters.
template <int kOperands, int kParams>
struct PointwiseArgs {
  Elementwise<kOperands> operands;
  double params[kParams];
};

/// The slot of a row: kernels::slot<Relu>(device, dtype, operands).
template <class Row>
inline constinit Slot<std::conditional_t<Row::kParams == 0, Elementwise<Row::kOperands>,
                                         PointwiseArgs<Row::kOperands, std::max(Row::kParams, 1)>>>
    slot{Row::kSlotName.text};

/// The dtypes that a function takes. `all_as_f32` means that integers and bools are first converted to f32.
enum class Takes : std::uint8_t { floats, numbers, all_as_f32 };
/// The tensor that the gradient of a function is computed from, beside the incoming gradient dy.
enum class GradientFrom : std::uint8_t { input, output };

/// A row for a function of one tensor. The function `gradient(dy, t)` computes the gradient of the input,
/// where t is the function's input or output. If the gradient is another row's value, the row names that row
/// instead: `using Gradient = Mul;`.
template <FixedString kName, Takes kTake, GradientFrom kFrom, int kParamCount = 0>
struct Function : Pointwise<kName, 2, kTake == Takes::numbers ? kNumbers : kFloats, kParamCount> {
  static constexpr Takes kTakes = kTake;
  static constexpr GradientFrom kGradientFrom = kFrom;
};

/// The row of a function's derivative, which is called "<name>_backward".
template <class F>
struct GradientOf : Pointwise<F::kSlotName + "_backward", 3, kFloats, F::kParams> {
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

/// Calls `f.template operator()<Row>()` for each row.
template <class... Rows, class F>
bool for_rows_of(RowList<Rows...>, F&& f) {
  (f.template operator()<Rows>(), ...);
  return true;
}

}  // namespace tapestry::kernels
