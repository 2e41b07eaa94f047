// Tiles of 12 rows and one or two panels for AVX-512: 24 sums and two vectors of b take 26 of its 32
// registers.
#include "tapestry/kernels/cpu/wide.h"

#ifdef TAPESTRY_WIDE_LOOPS
#include <algorithm>
#include <array>
#include <utility>

#include <immintrin.h>

#include "tapestry/kernels/cpu/tile.h"

namespace tapestry::kernels::cpu {
namespace {

constexpr int kWideRows = 12;
static_assert(kTileColumns == 16);

template <int kRows, int kPanels>
[[gnu::target("avx512f")]] void multiply_wide_tile(const TileProduct& t, const float* a, const float* b,
                                                   float* c) {
  __m512 sum[kRows][kPanels];
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kPanels; ++v)
      sum[r][v] = t.accumulate ? _mm512_loadu_ps(c + r * t.c_row + v * kTileColumns) : _mm512_setzero_ps();
  const std::int64_t depth = t.depth, a_row = t.a_row, a_step = t.a_step, b_row = t.b_row, panel = t.b_panel;
  for (std::int64_t p = 0; p < depth; ++p, a += a_step, b += b_row) {
    __m512 column[kPanels];
    for (int v = 0; v < kPanels; ++v) column[v] = _mm512_loadu_ps(b + v * panel);
    for (int r = 0; r < kRows; ++r) {
      const __m512 x = _mm512_set1_ps(a[r * a_row]);
      for (int v = 0; v < kPanels; ++v) sum[r][v] = _mm512_fmadd_ps(x, column[v], sum[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kPanels; ++v) _mm512_storeu_ps(c + r * t.c_row + v * kTileColumns, sum[r][v]);
}

template <int kPanels>
void multiply_wide_panels(const TileProduct& t, std::int64_t j) {
  using Tile = void (*)(const TileProduct&, const float*, const float*, float*);
  static constexpr auto tiles = []<std::size_t... kIndex>(std::index_sequence<kIndex...>) {
    return std::array<Tile, kWideRows>{&multiply_wide_tile<static_cast<int>(kIndex) + 1, kPanels>...};
  }
  (std::make_index_sequence<kWideRows>());
  const float* const b = t.b + j / kTileColumns * t.b_panel;
  for (std::int64_t i = 0; i < t.m; i += kWideRows)
    tiles[static_cast<std::size_t>(std::min<std::int64_t>(kWideRows, t.m - i) - 1)](t, t.a + i * t.a_row, b,
                                                                                    t.c + i * t.c_row + j);
}

}  // namespace

void multiply_wide_tiles(const TileProduct& t) {
  std::int64_t j = 0;
  for (; j + 2 * kTileColumns <= t.n; j += 2 * kTileColumns) multiply_wide_panels<2>(t, j);
  if (j < t.n) multiply_wide_panels<1>(t, j);
}

}  // namespace tapestry::kernels::cpu

#endif
