#pragma once
// Visits the rows of a dense (outer, n, inner) array for the softmax family. Each row is passed as a
// contiguous array in the compute type.
#include <algorithm>
#include <limits>
#include <memory>
#include <type_traits>

#include "tapestry/kernels/cpu/exp.h"
#include "tapestry/kernels/cpu/loops.h"
#include "tapestry/kernels/cpu/wide.h"

namespace tapestry::kernels::cpu {

/// A row of bf16 numbers that is read as f32.
struct WideRow {
  const BFloat16* x = nullptr;
  float operator[](std::int64_t i) const { return static_cast<float>(x[i]); }
};

/// Calls f(row, x, y) for every row. x[k] is the row of input k. y is the row of the output, which f writes,
/// or null if `result` is null. Rows are numbered outer * inner + i. If rows are strided or 16-bit floats,
/// several rows at a time are copied to a buffer. An f that takes WideRow for x[k] reads contiguous bf16 rows
/// where they are. `cost` is the cost of one element, in units of one load.
template <class T, int K, class F>
void for_each_row(std::int64_t outer, std::int64_t n, std::int64_t inner, const T* const (&in)[K], T* result,
                  std::int64_t cost, const F& f) {
  using C = Compute<T>;
  if (outer * inner == 0) return;
  const std::int64_t work = std::max<std::int64_t>(n * cost, 1);
  if constexpr (!is_half<T>) {
    if (inner == 1) {
      parallel_for(outer, grain_of(work), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
          const C* x[K];
          for (int k = 0; k < K; ++k) x[k] = in[k] + row * n;
          with_wide_vectors([&f, &x, row, y = result ? result + row * n : nullptr] { f(row, x, y); });
        }
      });
      return;
    }
  }
  const std::int64_t width =
      std::clamp<std::int64_t>(8192 / std::max<std::int64_t>(n, 1), 1, std::min<std::int64_t>(inner, 16));
  const std::int64_t tiles = (inner + width - 1) / width;
  parallel_for(outer * tiles, grain_of(work * width), [&](std::int64_t begin, std::int64_t end) {
    const auto buffer = std::make_unique_for_overwrite<C[]>(static_cast<std::size_t>((K + 1) * width * n));
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t o = i / tiles, first = (i - o * tiles) * width,
                         count = std::min(width, inner - first);
      const std::int64_t at = o * n * inner + first;
      if constexpr (is_half<T>) {
        if (inner == 1) {
          with_wide_vectors([&f, &in, at, n, o, y = &buffer[K * n], memory = buffer.get(), result] {
            if constexpr (std::is_same_v<T, BFloat16> &&
                          std::is_invocable_v<const F&, std::int64_t, const WideRow(&)[K], C*>) {
              WideRow x[K];
              for (int k = 0; k < K; ++k) x[k].x = in[k] + at;
              f(o, x, result ? y : nullptr);
            } else {
              const C* x[K];
              for (int k = 0; k < K; ++k) {
                x[k] = memory + k * n;
                to_float(in[k] + at, memory + k * n, n);
              }
              f(o, x, result ? y : nullptr);
            }
            if (result) from_float(y, result + at, n);
          });
          continue;
        }
      }
      for (int k = 0; k < K; ++k) {
        const T* const from = in[k] + at;
        C* const to = &buffer[k * width * n];
        for (std::int64_t c = 0; c < n; ++c)
          for (std::int64_t j = 0; j < count; ++j) to[j * n + c] = static_cast<C>(from[c * inner + j]);
      }
      C* const y = &buffer[K * width * n];
      for (std::int64_t j = 0; j < count; ++j) {
        const C* x[K];
        for (int k = 0; k < K; ++k) x[k] = &buffer[(k * width + j) * n];
        f(o * inner + first + j, x, result ? y + j * n : nullptr);
      }
      if (!result) continue;
      for (std::int64_t c = 0; c < n; ++c)
        for (std::int64_t j = 0; j < count; ++j) result[at + c * inner + j] = convert<T>(y[j * n + c]);
    }
  });
}

/// Reduces get(0), ..., get(n - 1) by `join`, with several lanes at once.
template <class C, class Get, class Join>
C fold_lanes(std::int64_t n, C start, const Get& get, const Join& join) {
  constexpr std::int64_t lanes = sizeof(C) == 8 ? 16 : 32;
  C result = start;
  std::int64_t i = 0;
  if (n >= lanes) {
    C lane[lanes];
    std::fill_n(lane, lanes, start);
    for (; i + lanes <= n; i += lanes)
      for (std::int64_t j = 0; j < lanes; ++j) lane[j] = join(lane[j], get(i + j));
    for (std::int64_t half = lanes / 2; half > 0; half /= 2)
      for (std::int64_t j = 0; j < half; ++j) lane[j] = join(lane[j], lane[j + half]);
    result = lane[0];
  }
  for (; i < n; ++i) result = join(result, get(i));
  return result;
}

/// The largest element, or -inf if n = 0. NaN is ignored: the caller's sum of exponentials becomes NaN
/// anyway.
template <class Row>
auto row_max(const Row& x, std::int64_t n) {
  using C = std::decay_t<decltype(x[0])>;
  return fold_lanes(
      n, -std::numeric_limits<C>::infinity(), [x](std::int64_t i) { return x[i]; },
      [](C a, C b) { return b > a ? b : a; });
}
/// The sum of get(0), ..., get(n - 1). It is computed in blocks, so that the rounding error does not grow
/// with n.
template <class C, class Get>
C row_sum(std::int64_t n, const Get& get) {
  double total = 0;
  for (std::int64_t begin = 0; begin < n; begin += 1024) {
    const auto from_here = [&get, begin](std::int64_t i) { return get(begin + i); };
    total += static_cast<double>(
        fold_lanes(std::min<std::int64_t>(n - begin, 1024), C(0), from_here, [](C a, C b) { return a + b; }));
  }
  return static_cast<C>(total);
}

}  // namespace tapestry::kernels::cpu
