#pragma once
// GPU kernels of the rows in kernels/ops/. map.cuh has the loop around each formula. There are kernels for
// f32 and bf16, which are computed in f32.
#include <utility>

#include "tapestry/kernels/cuda/map.cuh"
#include "tapestry/kernels/cuda/math.cuh"
#include "tapestry/kernels/ops/pointwise.h"

namespace tapestry::kernels::cuda {

/// Computes Row::value(inputs..., params...) for results of type T.
template <class Row, class T = float, int kParams = Row::kParams>
struct Formula {
  float params[kParams];
  template <class... In>
  __device__ auto operator()(In... in) const {
    return with_params(std::make_index_sequence<kParams>(), in...);
  }

 private:
  template <std::size_t... kParam, class... In>
  __device__ auto with_params(std::index_sequence<kParam...>, In... in) const {
    return Row::template value<Math<T>>(in..., params[kParam]...);
  }
};
template <class Row, class T>
struct Formula<Row, T, 0> {
  template <class... In>
  __device__ auto operator()(In... in) const {
    return Row::template value<Math<T>>(in...);
  }
};

template <class Row, class T, std::size_t... kInput>
void launch_formula(const Elementwise<Row::kOperands>& e, const Formula<Row, T>& formula, cudaStream_t stream,
                    std::index_sequence<kInput...>) {
  using Out = std::conditional_t<Row::kGivesBool, bool, T>;
  map<Out, std::conditional_t<true, T, std::index_sequence<kInput>>...>(e, formula, stream);
}
template <class Row, class T, class Args>
void launch_pointwise(const LaunchContext& context, const Args& a) {
  constexpr auto inputs = std::make_index_sequence<Row::kOperands - 1>();
  Formula<Row, T> formula;
  if constexpr (Row::kParams == 0) {
    launch_formula<Row, T>(a, formula, stream_of(context), inputs);
  } else {
    for (int i = 0; i < Row::kParams; ++i) formula.params[i] = static_cast<float>(a.params[i].to_double());
    launch_formula<Row, T>(a.operands, formula, stream_of(context), inputs);
  }
}

/// Registers the kernels of a row.
template <class Row>
void register_pointwise() {
  for_types<float, BFloat16>(
      []<class T>() { slot<Row>.set(DeviceType::cuda, dtype_of<T>, &launch_pointwise<Row, T>); });
}

// ---- rows that share a kernel

/// Row::value() as a function that the compiler does not inline, so that a kernel with many rows stays small.
template <class Row, class C, class... In>
__device__ __noinline__ C called_formula(C first, In... rest) {
  return Row::template value<Math<>>(first, rest...);
}
/// Computes one row of the list, which is selected at run time.
template <class List>
struct SelectedFormula;
template <class... Rows>
struct SelectedFormula<RowList<Rows...>> {
  int row;
  template <class C, class... In>
  __device__ C operator()(C first, In... rest) const {
    C y = 0;
    int i = 0;
    static_cast<void>(((i++ == row && (y = called_formula<Rows>(first, rest...), true)) || ...));
    return y;
  }
};
template <class List, class Row, class T>
void launch_selected(const LaunchContext& context, const Elementwise<Row::kOperands>& e) {
  const SelectedFormula<List> formula{position_in<Row>(List())};
  [&]<std::size_t... kInput>(std::index_sequence<kInput...>) {
    map<T, std::conditional_t<true, T, std::index_sequence<kInput>>...>(e, formula, stream_of(context));
  }
  (std::make_index_sequence<Row::kOperands - 1>());
}
/// Registers the rows of a list for the dtypes of T. All rows have the same number of operands and no
/// parameters. They share one kernel per dtype, which is compiled in a fraction of the time of a kernel per
/// row.
template <class... T, class... Rows>
bool register_selected(RowList<Rows...>) {
  return for_types<T...>([]<class Each>() {
    (slot<Rows>.set(DeviceType::cuda, dtype_of<Each>, &launch_selected<RowList<Rows...>, Rows, Each>), ...);
  });
}

}  // namespace tapestry::kernels::cuda
