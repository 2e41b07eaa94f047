#pragma once
// The loops of the CPU's elementwise kernels. map<Out, In...>(args, f) computes out = f(in...) for each
// element, in parallel. Per functor, g++ compiles one loop, which is vectorised: the loop over dense arrays
// of compute types. Operands that are strided, broadcast, f16 or bf16 are copied to such arrays in blocks
// (pointwise_loops.cpp), which stay in the L1 cache.
#include <tuple>
#include <type_traits>
#include <utility>

#include "tapestry/kernels/convert.h"
#include "tapestry/kernels/cpu/compute.h"
#include "tapestry/kernels/view.h"

namespace tapestry::kernels::cpu {

/// Computes `n` elements of out from the inputs. All of them are dense arrays of compute types. `f` points to
/// the functor.
using BlockFn = void (*)(const void* f, std::int64_t n, void* out, const void* const* in);

// `#pragma GCC ivdep` promises that no element is read after it was written through another index. This holds
// because, by the contract, the output is the same array as an input or does not overlap it. `flatten`
// inlines f, since a function call in the loop would prevent vectorisation; g++ stops inlining by itself in a
// file with many kernels. The loop calls a copy of f: the compiler must assume that `out` overlaps what a
// reference points to, and would read f's parameters again in each step.
template <class F, class Out, class... In>
[[gnu::flatten]] inline void simple_loop(std::int64_t n, const F& f, Out* out, const In*... in) {
  const F own = f;
#ifdef __clang__
#pragma clang loop vectorize(assume_safety)
#else
#pragma GCC ivdep
#endif
  for (std::int64_t i = 0; i < n; ++i) out[i] = own(in[i]...);
}
/// The BlockFn of a functor.
template <class F, class Out, class... In>
void block_loop(const void* f, std::int64_t n, void* out, const void* const* in) {
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    simple_loop(n, *static_cast<const F*>(f), static_cast<Out*>(out), static_cast<const In*>(in[I])...);
  }
  (std::index_sequence_for<In...>());
}
/// BlockFns of a functor of two inputs, of which one is constant: its array has one element.
template <class F, class Out, class A, class B>
void constant_first_loop(const void* f, std::int64_t n, void* out, const void* const* in) {
  const A a = *static_cast<const A*>(in[0]);
  simple_loop(
      n, [f = *static_cast<const F*>(f), a](B b) { return f(a, b); }, static_cast<Out*>(out),
      static_cast<const B*>(in[1]));
}
template <class F, class Out, class A, class B>
void constant_second_loop(const void* f, std::int64_t n, void* out, const void* const* in) {
  const B b = *static_cast<const B*>(in[1]);
  simple_loop(
      n, [f = *static_cast<const F*>(f), b](A a) { return f(a, b); }, static_cast<Out*>(out),
      static_cast<const A*>(in[0]));
}

/// A loop over `n` elements along one dimension. `strides` starts with the output's stride. `f` points to the
/// functor.
using RowFn = void (*)(const void* f, std::int64_t n, void* out, const void* const* in,
                       const std::int64_t* strides);

/// Calls row() for runs along the last dimension. Together the runs cover elements [begin, end). `element`
/// has the element size of each operand.
template <int N>
void for_rows(const Elementwise<N>& e, const std::int64_t (&element)[N], std::int64_t begin, std::int64_t end,
              RowFn row, const void* f) {
  OperandAddresses<N> at = e;
  const int last = e.ndim - 1;
  std::int64_t index[kMaxDims], strides[N];
  for (int n = 0; n < N; ++n) strides[n] = e.strides[n][last];
  std::int64_t rest = begin;
  for (int d = last; d >= 0; --d) {
    index[d] = rest % e.sizes[d];
    rest /= e.sizes[d];
    for (int n = 0; n < N; ++n) at.advance(n, index[d] * e.strides[n][d] * element[n]);
  }
  std::int64_t run = std::min(e.sizes[last] - index[last], end - begin);
  row(f, run, at.out, at.in, strides);
  begin += run;
  // The first run may have begun in the middle of a row. All others begin a row.
  for (int n = 0; n < N; ++n) at.advance(n, -index[last] * strides[n] * element[n]);
  std::int64_t step[N] = {};  // from one row to the next, in bytes
  if (last > 0)
    for (int n = 0; n < N; ++n) step[n] = e.strides[n][last - 1] * element[n];
  while (begin < end) {
    // Advance by one in the innermost outer dimension that is not at its end.
    if (++index[last - 1] < e.sizes[last - 1]) {
      for (int n = 0; n < N; ++n) at.advance(n, step[n]);
    } else {
      --index[last - 1];
      for (int d = last - 1; d >= 0; --d) {
        const bool wraps = index[d] == e.sizes[d] - 1;
        for (int n = 0; n < N; ++n) at.advance(n, (wraps ? -index[d] : 1) * e.strides[n][d] * element[n]);
        index[d] = wraps ? 0 : index[d] + 1;
        if (!wraps) break;
      }
    }
    run = std::min(e.sizes[last], end - begin);
    row(f, run, at.out, at.in, strides);
    begin += run;
  }
}

/// Calls row() for all elements, in parallel. This function does not depend on the functor's type, so it is
/// compiled only once per N.
template <int N>
void for_all_rows(const Elementwise<N>& e, const std::int64_t (&element)[N], RowFn row, const void* f) {
  if (e.numel == 0) return;
  if (e.ndim == 1 && e.numel <= kGrain) {
    std::int64_t strides[N];
    for (int n = 0; n < N; ++n) strides[n] = e.strides[n][0];
    return row(f, e.numel, e.out, e.in, strides);
  }
  parallel_for(e.numel, kGrain,
               [&](std::int64_t begin, std::int64_t end) { for_rows(e, element, begin, end, row, f); });
}

/// The functor of a kernel, its loops, and the dtypes of its operands. The output is operand 0.
struct BlockLoop {
  const void* f;
  BlockFn block;
  BlockFn constant_first, constant_second;  // null unless there are two inputs of type float
  const DType* dtypes;
};
/// Runs the loop over all elements, in parallel.
template <int N>
void run_loop(const Elementwise<N>& e, const BlockLoop& loop);
extern template void run_loop(const Elementwise<1>&, const BlockLoop&);
extern template void run_loop(const Elementwise<2>&, const BlockLoop&);
extern template void run_loop(const Elementwise<3>&, const BlockLoop&);
extern template void run_loop(const Elementwise<4>&, const BlockLoop&);

/// Computes out = f(in...). Out and In are the types that f returns and takes: the compute types of the
/// operands' dtypes.
template <class Out, class... In, class F>
inline void map(const Elementwise<1 + int(sizeof...(In))>& e, const F& f) {
  BlockLoop loop{&f, &block_loop<F, Out, In...>, nullptr, nullptr, e.dtypes};
  if constexpr (sizeof...(In) == 2 && (std::is_same_v<In, float> && ...)) {
    loop.constant_first = &constant_first_loop<F, Out, In...>;
    loop.constant_second = &constant_second_loop<F, Out, In...>;
  }
  run_loop(e, loop);
}

}  // namespace tapestry::kernels::cpu
