#pragma once
// Loops of f32 rows that take most of their time in arithmetic, compiled a second time for AVX-512. They run
// if the CPU has AVX-512, although kernels are compiled for AVX2 at most (cmake/compiler.cmake says why). The
// library for processors without AVX2 does without them. Both loops give the same bits: they have the same
// operations, in vectors of 8 and of 16 numbers.
#include "tapestry/kernels/cpu/pointwise.h"

// clang has no way to prefer vectors of 512 bits in one function. A build for AVX-512 needs no second loop.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__AVX2__) && \
    !defined(__AVX512F__)
#define TAPESTRY_WIDE_LOOPS 1
#endif

namespace tapestry::kernels::cpu {

/// Whether rows run the loops for AVX-512.
bool wide_loops();
/// Switches the loops for AVX-512 on, if this CPU and this build have them, or off. For tests.
void set_wide_loops(bool on);

#ifdef TAPESTRY_WIDE_LOOPS
namespace detail {
template <class F>
[[gnu::flatten, gnu::target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")]] void call_wide(
    const F& f) {
  f();
}
}  // namespace detail
#endif
/// Calls f(), whose loops are compiled for AVX-512 too. f() is to contain the arithmetic of a row or a block:
/// everything that it calls is compiled twice. Both versions give the same bits if the lanes of f's sums do
/// not depend on the width of vectors.
template <class F>
void with_wide_vectors(const F& f) {
#ifdef TAPESTRY_WIDE_LOOPS
  if (wide_loops()) return detail::call_wide(f);
#endif
  f();
}

#ifdef TAPESTRY_WIDE_LOOPS
/// simple_loop() for AVX-512.
template <class F, class... In>
[[gnu::flatten, gnu::target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")]] inline void
wide_loop(std::int64_t n, const F& f, float* out, const In*... in) {
  const F own = f;
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) out[i] = own(in[i]...);
}

template <class Row, class M, std::size_t... kInput, std::size_t... kParam>
inline void run_wide(const Elementwise<Row::kOperands>& e, const Scalar* params,
                     std::index_sequence<kInput...>, std::index_sequence<kParam...>) {
  const std::array<float, sizeof...(kParam)> numbers{convert_scalar<float>(params[kParam])...};
  const auto formula = [p = numbers](std::conditional_t<true, float, std::index_sequence<kInput>>... in) {
    return Row::template value<M>(in..., p[kParam]...);
  };
  const BlockFn block = [](const void* f, std::int64_t n, void* out, const void* const* in) {
    wide_loop(n, *static_cast<const decltype(formula)*>(f), static_cast<float*>(out),
              static_cast<const float*>(in[kInput])...);
  };
  run_loop(e, {&formula, block, nullptr, nullptr, e.dtypes});
}
template <class Row, class M, class Args>
void wide_kernel(const LaunchContext& context, const Args& a) {
  if (!wide_loops()) return pointwise_kernel<Row, M, float>(context, a);
  constexpr auto inputs = std::make_index_sequence<Row::kOperands - 1>();
  constexpr auto params = std::make_index_sequence<Row::kParams>();
  if constexpr (Row::kParams == 0) run_wide<Row, M>(a, nullptr, inputs, params);
  else run_wide<Row, M>(a.operands, a.params.data(), inputs, params);
}
#else
template <class Row, class M, class Args>
void wide_kernel(const LaunchContext& context, const Args& a) {
  pointwise_kernel<Row, M, float>(context, a);
}
#endif

/// Registers the kernels of a row like register_pointwise(). The kernels of f32, f16 and bf16 choose between
/// the loops for AVX2 and AVX-512.
template <class Row>
void register_wide() {
  constexpr DTypeSet in_f32 = bit(DType::f32) | bit(DType::f16) | bit(DType::bf16);
  for_dtypes<Row::kDTypes & in_f32>(
      []<class T>() { slot<Row>.set(DeviceType::cpu, dtype_of<T>, &wide_kernel<Row, Math>); });
  register_pointwise<Row, Row::kDTypes & ~in_f32>();
}

}  // namespace tapestry::kernels::cpu
