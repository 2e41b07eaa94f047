#pragma once
// Arithmetic in f16. Sums, differences, products, quotients and multiples have kernels of their own, as in
// f32 and bf16. All other rows with the same operands and parameters share a kernel, which selects the row at
// run time, because a kernel takes almost a second to compile.
#include "tapestry/kernels/cuda/pointwise.cuh"
#include "tapestry/kernels/ops/arithmetic.h"
#include "tapestry/kernels/ops/composite.h"
#include "tapestry/kernels/ops/functions.h"
#include "tapestry/kernels/ops/swiglu.h"

namespace tapestry::kernels::cuda {

/// The rows with kernels of their own.
using OwnF16 = RowList<Add, Sub, Mul, Div, WithNumber<Add, 1>, WithNumber<Mul, 1>, AddScaled>;

// The lists of rows that share a kernel: by operands, and whether the last one is a number.
using UnaryF16 = RowList<Neg, Abs, Exp, Log, Sqrt, Rsqrt>;
using BinaryF16 = RowList<Maximum, Minimum, Pow, Atan2, Fmod, Remainder, FloorDivide, Xlogy, Hypot, LogAddExp,
                          Swiglu, Glu, GradientOf<Abs>, GradientOf<Sqrt>, GradientOf<Rsqrt>>;
using GradientsF16 = RowList<BackwardB<Div>, BackwardA<Maximum>, BackwardA<Minimum>, BackwardA<Pow>,
                             BackwardB<Pow>, BackwardA<Swiglu>, BackwardB<Swiglu>, BackwardB<Glu>>;
using UnaryNumberF16 =
    RowList<WithNumber<Sub, 1>, WithNumber<Sub, 0>, WithNumber<Div, 1>, WithNumber<Div, 0>, PowScalar>;
using BinaryNumberF16 = RowList<PowScalarBackward, Lerp>;

/// Computes one row of the list, which is selected at run time, with the number that is the row's parameter.
template <class List>
struct SelectedWithNumber;
template <class... Rows>
struct SelectedWithNumber<RowList<Rows...>> {
  int row;
  float number;
  template <class... In>
  __device__ float operator()(In... in) const {
    float y = 0;
    int i = 0;
    static_cast<void>(((i++ == row && (y = called_formula<Rows>(in..., number), true)) || ...));
    return y;
  }
};
template <class List, class Row, class T>
void launch_selected_with_number(const LaunchContext& context, const PointwiseArgs<Row::kOperands, 1>& a) {
  const SelectedWithNumber<List> formula{position_in<Row>(List()),
                                         static_cast<float>(a.params[0].to_double())};
  [&]<std::size_t... kInput>(std::index_sequence<kInput...>) {
    map<T, std::conditional_t<true, T, std::index_sequence<kInput>>...>(a.operands, formula,
                                                                        stream_of(context));
  }
  (std::make_index_sequence<Row::kOperands - 1>());
}

}  // namespace tapestry::kernels::cuda
