#pragma once
// CPU kernels of the rows in kernels/ops/. Each kernel is a loop around the row's formula.
#include <algorithm>
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

/// Computes out = Row::value(inputs..., params...), where C is the compute type of all inputs. M has the
/// elementary functions.
template <class Row, class M, class C, std::size_t... kInput, std::size_t... kParam>
inline void run_pointwise(const Elementwise<Row::kOperands>& e, const Scalar* params,
                          std::index_sequence<kInput...>, std::index_sequence<kParam...>) {
  using Param = typename Row::template Param<C>;
  const std::array<Param, sizeof...(kParam)> numbers{convert_scalar<Param>(params[kParam])...};
  const auto formula = [p = numbers](auto... in) { return Row::template value<M>(in..., p[kParam]...); };
  using Out = std::conditional_t<Row::kGivesBool, bool, C>;
  map<Out, std::conditional_t<true, C, std::index_sequence<kInput>>...>(e, formula);
}
template <class Row, class M, class C, class Args>
void pointwise_kernel(const LaunchContext&, const Args& a) {
  constexpr auto inputs = std::make_index_sequence<Row::kOperands - 1>();
  constexpr auto params = std::make_index_sequence<Row::kParams>();
  if constexpr (Row::kParams == 0) run_pointwise<Row, M, C>(a, nullptr, inputs, params);
  else run_pointwise<Row, M, C>(a.operands, a.params.data(), inputs, params);
}

/// Registers the kernels of a row. The kernel of f32 is also that of f16 and bf16.
template <class Row, DTypeSet kSet = Row::kDTypes>
void register_pointwise() {
  for_dtypes<kSet>([]<class T>() {
    slot<Row>.set(DeviceType::cpu, dtype_of<T>, &pointwise_kernel<Row, Math, Compute<T>>);
  });
}

// ---- rows whose vectorised f32 formula does not hold for all inputs

/// Runs such a row over a block, in parts of 256 elements. Fallback::fits(inputs...) says whether the
/// functions of Math hold for an element. If they do not hold for some element of a part, the part is
/// computed with the functions of Fallback, which call the standard library. The inputs are checked first,
/// because `out` may be the same array as an input.
template <class Row, class Fallback, std::size_t... I>
inline void guarded_loop(std::int64_t n, void* out, const void* const* in, std::index_sequence<I...>) {
  constexpr std::int64_t part = 256;
  const auto formula = []<class M>(M) {
    return [](std::conditional_t<true, float, std::index_sequence<I>>... x) {
      return Row::template value<M>(x...);
    };
  };
  for (std::int64_t begin = 0; begin < n; begin += part) {
    const std::int64_t count = std::min(part, n - begin);
    const float* const at[] = {static_cast<const float*>(in[I]) + begin...};
    float* const y = static_cast<float*>(out) + begin;
    int fails = 0;
    for (std::int64_t i = 0; i < count; ++i) fails |= !Fallback::fits(at[I][i]...);
    if (fails) simple_loop(count, formula(Fallback()), y, at[I]...);
    else simple_loop(count, formula(Math()), y, at[I]...);
  }
}
template <class Row, class Fallback>
void guarded_kernel(const LaunchContext&, const Elementwise<Row::kOperands>& e) {
  const BlockFn block = [](const void*, std::int64_t n, void* out, const void* const* in) {
    guarded_loop<Row, Fallback>(n, out, in, std::make_index_sequence<Row::kOperands - 1>());
  };
  run_loop(e, {nullptr, block, nullptr, nullptr, e.dtypes});
}
/// Registers the kernels of such a row.
template <class Row, class Fallback>
void register_guarded() {
  constexpr DTypeSet in_f32 = bit(DType::f32) | bit(DType::f16) | bit(DType::bf16);
  for_dtypes<in_f32>(
      []<class T>() { slot<Row>.set(DeviceType::cpu, dtype_of<T>, &guarded_kernel<Row, Fallback>); });
  register_pointwise<Row, Row::kDTypes & ~in_f32>();
}

}  // namespace tapestry::kernels::cpu
