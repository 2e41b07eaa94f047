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

}  // namespace tapestry::kernels::cuda
