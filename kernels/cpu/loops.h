#pragma once
// The loops of the CPU's elementwise kernels. map<Out, In...>(args, f) computes out = f(in...) for each
// element, in parallel. The inner loop is vectorised if all operands are dense, or if one of two inputs is
// constant and the other is dense.
#include <tuple>
#include <type_traits>
#include <utility>

#include "tapestry/kernels/convert.h"
#include "tapestry/kernels/cpu/compute.h"
#include "tapestry/kernels/view.h"

namespace tapestry::kernels::cpu {

inline constexpr std::int64_t kBlock = 256;

/// Reads an operand in its compute type, block by block.
template <class T>
struct Reader {
  const T* p;
  const T* block(std::int64_t begin, std::int64_t) { return p + begin; }
};
template <class T>
requires is_half<T>
struct Reader<T> {
  const T* p;
  float buffer[kBlock];
  const float* block(std::int64_t begin, std::int64_t n) {
    to_float(p + begin, buffer, n);
    return buffer;
  }
};

// `#pragma GCC ivdep` promises that no element is read after it was written through another index. This holds
// because, by the contract, the output is the same array as an input or does not overlap it. `flatten`
// inlines f, since a function call in the loop would prevent vectorisation; g++ stops inlining by itself in a
// file with many kernels.
template <class Out, class F, class... In>
[[gnu::flatten]] inline void simple_loop(std::int64_t n, const F& f, Out* out, const In*... in) {
#ifdef __clang__
#pragma clang loop vectorize(assume_safety)
#else
#pragma GCC ivdep
#endif
  for (std::int64_t i = 0; i < n; ++i) out[i] = f(in[i]...);
}

template <class Out, class... In, class F>
inline void dense_loop(std::int64_t n, const F& f, Out* out, const In*... in) {
  if constexpr (is_half<Out> || (is_half<In> || ...)) {
    std::tuple<Reader<In>...> readers;
    std::apply([&](auto&... r) { ((r.p = in), ...); }, readers);
    for (std::int64_t begin = 0; begin < n; begin += kBlock) {
      const std::int64_t m = std::min(kBlock, n - begin);
      std::apply(
          [&](auto&... r) {
            if constexpr (is_half<Out>) {
              float buffer[kBlock];
              simple_loop(m, f, buffer, r.block(begin, m)...);
              from_float(buffer, out + begin, m);
            } else {
              simple_loop(m, f, out + begin, r.block(begin, m)...);
            }
          },
          readers);
    }
  } else {
    simple_loop(n, f, out, in...);
  }
}

template <class F, class Out, class... In, std::size_t... I>
inline void row(std::int64_t n, void* result, const void* const* inputs, const std::int64_t* s, const F& f,
                std::index_sequence<I...>) {
  Out* const out = static_cast<Out*>(result);
  const std::tuple<const In*...> in{static_cast<const In*>(inputs[I])...};
  if (s[0] == 1 && ((s[I + 1] == 1) && ...)) return dense_loop<Out, In...>(n, f, out, std::get<I>(in)...);
  if constexpr (sizeof...(In) == 2) {
    using A = std::tuple_element_t<0, std::tuple<In...>>;
    using B = std::tuple_element_t<1, std::tuple<In...>>;
    if (s[0] == 1 && s[1] == 1 && s[2] == 0) {
      const auto b = convert<Compute<B>>(*std::get<1>(in));
      return dense_loop<Out, A>(
          n, [&f, b](auto a) { return f(a, b); }, out, std::get<0>(in));
    }
    if (s[0] == 1 && s[1] == 0 && s[2] == 1) {
      const auto a = convert<Compute<A>>(*std::get<0>(in));
      return dense_loop<Out, B>(
          n, [&f, a](auto b) { return f(a, b); }, out, std::get<1>(in));
    }
  }
  for (std::int64_t i = 0; i < n; ++i)
    out[i * s[0]] = convert<Out>(f(convert<Compute<In>>(std::get<I>(in)[i * s[I + 1]])...));
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
  while (true) {
    const std::int64_t run = std::min(e.sizes[last] - index[last], end - begin);
    row(f, run, at.out, at.in, strides);
    begin += run;
    if (begin >= end) return;
    // Move to the next row: return to the beginning of this row, then advance by one in the innermost outer
    // dimension that is not at its end.
    for (int n = 0; n < N; ++n) at.advance(n, -index[last] * strides[n] * element[n]);
    index[last] = 0;
    for (int d = last - 1; d >= 0; --d) {
      const bool wraps = ++index[d] == e.sizes[d];
      for (int n = 0; n < N; ++n) at.advance(n, (wraps ? 1 - e.sizes[d] : 1) * e.strides[n][d] * element[n]);
      if (!wraps) break;
      index[d] = 0;
    }
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

/// Computes out = f(in...), where f takes and returns Compute<> types.
template <class Out, class... In, class F>
inline void map(const Elementwise<1 + int(sizeof...(In))>& e, const F& f) {
  constexpr std::int64_t element[] = {sizeof(Out), sizeof(In)...};
  for_all_rows(
      e, element,
      [](const void* fn, std::int64_t n, void* out, const void* const* in, const std::int64_t* strides) {
        row<F, Out, In...>(n, out, in, strides, *static_cast<const F*>(fn), std::index_sequence_for<In...>{});
      },
      &f);
}

}  // namespace tapestry::kernels::cpu
