#pragma once
// CPU kernels of the rows in kernels/ops/. Each kernel is a loop around the row's formula.
#include <array>
#include <utility>

#include "tapestry/kernels/cpu/loops.h"
#include "tapestry/kernels/cpu/math.h"
#include "tapestry/kernels/ops/pointwise.h"

namespace tapestry::kernels::cpu {

/// Calls `f.template operator()<T>()` for each dtype of the set, where T is its element type.
template <DTypeSet kSet, class F>
void for_dtypes(F&& f) {
  for_types<float, double, Half, BFloat16, std::int64_t, std::int32_t, std::uint8_t, bool>([&]<class T>() {
    if constexpr (contains(kSet, dtype_of<T>)) f.template operator()<T>();
  });
}

/// Computes out = Row::value(inputs..., params...), where C is the compute type of all inputs.
template <class Row, class C, std::size_t... kInput, std::size_t... kParam>
inline void run_pointwise(const Elementwise<Row::kOperands>& e, const Scalar* params,
                          std::index_sequence<kInput...>, std::index_sequence<kParam...>) {
  using Param = typename Row::template Param<C>;
  const std::array<Param, sizeof...(kParam)> numbers{convert_scalar<Param>(params[kParam])...};
  const auto formula = [p = numbers](auto... in) { return Row::template value<Math>(in..., p[kParam]...); };
  using Out = std::conditional_t<Row::kGivesBool, bool, C>;
  map<Out, std::conditional_t<true, C, std::index_sequence<kInput>>...>(e, formula);
}
template <class Row, class C, class Args>
void pointwise_kernel(const LaunchContext&, const Args& a) {
  constexpr auto inputs = std::make_index_sequence<Row::kOperands - 1>();
  constexpr auto params = std::make_index_sequence<Row::kParams>();
  if constexpr (Row::kParams == 0) run_pointwise<Row, C>(a, nullptr, inputs, params);
  else run_pointwise<Row, C>(a.operands, a.params.data(), inputs, params);
}

/// Registers the kernels of a row. The kernel of f32 is also that of f16 and bf16.
template <class Row>
void register_pointwise() {
  for_dtypes<Row::kDTypes>(
      []<class T>() { slot<Row>.set(DeviceType::cpu, dtype_of<T>, &pointwise_kernel<Row, Compute<T>>); });
}

}  // namespace tapestry::kernels::cpu
