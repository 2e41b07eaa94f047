#pragma once
// Products of one row with a matrix: a vector's dot products with several rows, and sums of rows.
#include <algorithm>
#include <cstdint>

#include "tapestry/kernels/cpu/tile.h"

namespace tapestry::kernels::cpu {

/// Writes the dot products of a with `kRows` rows of b, which are `stride` elements apart, to `out`. Rows
/// that are computed together share the loads of a, and their chains of additions hide each other's latency.
template <int kRows>
inline void dot_rows(const float* a, const float* b, std::int64_t stride, std::int64_t n, float* out) {
  TileVector sum[kRows][2] = {};
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    TileVector low, high;
    detail::load_tile(low, a + i);
    detail::load_tile(high, a + i + 8);
    for (int r = 0; r < kRows; ++r) {
      TileVector x, y;
      detail::load_tile(x, b + r * stride + i);
      detail::load_tile(y, b + r * stride + i + 8);
      detail::add_product(sum[r][0], low, x);
      detail::add_product(sum[r][1], high, y);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    const TileVector s = sum[r][0] + sum[r][1];
    float total = ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
    for (std::int64_t j = i; j < n; ++j) detail::add_product(total, a[j], b[r * stride + j]);
    out[r] = total;
  }
}

/// Writes the dot products of a with `rows` rows of b.
inline void dot_all_rows(const float* a, const float* b, std::int64_t stride, std::int64_t rows,
                         std::int64_t n, float* out) {
  std::int64_t j = 0;
  for (; j + 4 <= rows; j += 4) dot_rows<4>(a, b + j * stride, stride, n, out + j);
  for (; j < rows; ++j) dot_rows<1>(a, b + j * stride, stride, n, out + j);
}

/// sum[c] += the sum over j of a[j] b[j stride + c], for c < columns. The rows are short, and are read one
/// after another, while the sums of 32 columns stay in registers.
inline void add_rows(const float* a, const float* b, std::int64_t stride, std::int64_t rows,
                     std::int64_t columns, float* sum) {
  std::int64_t c = 0;
  for (; c + 32 <= columns; c += 32) {
    TileVector s[4];
    for (int v = 0; v < 4; ++v) detail::load_tile(s[v], sum + c + 8 * v);
    for (std::int64_t j = 0; j < rows; ++j)
      for (int v = 0; v < 4; ++v) {
        TileVector x;
        detail::load_tile(x, b + j * stride + c + 8 * v);
        detail::add_product(s[v], a[j], x);
      }
    for (int v = 0; v < 4; ++v) detail::store_tile(sum + c + 8 * v, s[v]);
  }
  if (c == columns) return;
  for (std::int64_t j = 0; j < rows; ++j)
    for (std::int64_t i = c; i < columns; ++i) detail::add_product(sum[i], a[j], b[j * stride + i]);
}

}  // namespace tapestry::kernels::cpu
