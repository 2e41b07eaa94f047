// Matrix products with a packed factor. A panel of b is read once for all rows of a, and each thread has
// panels of its own, which stay in its cache from product to product.
#include "tapestry/kernels/ops/matmul_packed.h"

#include <algorithm>
#include <cstring>

#include "tapestry/kernels/cpu/grain.h"

namespace tapestry::kernels::cpu {
namespace {

// A panel is two vectors wide. Six rows of c then take 12 of AVX2's 16 registers.
constexpr std::int64_t kWidth = kPanelColumns / 2;
constexpr int kMostRows = 6;
// A part of a panel with so many rows fits in half of the L1 cache.
constexpr std::int64_t kDepth = 256;

typedef float Vector __attribute__((vector_size(kWidth * sizeof(float))));  // NOLINT: GNU's vector types

// Vectors are not returned: without AVX, the ABI of that depends on the compiler's version.
inline void load_vector(Vector& v, const float* from) { std::memcpy(&v, from, sizeof(v)); }
inline void store_vector(float* to, const Vector& v) { std::memcpy(to, &v, sizeof(v)); }

// c += a b for kRows rows, and `depth` rows of one panel of b. All columns of the panel are in c.
template <int kRows>
void multiply_tile(std::int64_t depth, const float* a, std::int64_t a_row, const float* b, float* c,
                   std::int64_t c_row) {
  Vector sum[kRows][2];
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < 2; ++v) load_vector(sum[r][v], c + r * c_row + v * kWidth);
  for (std::int64_t i = 0; i < depth; ++i) {
    Vector low, high;
    load_vector(low, b + i * kPanelColumns);
    load_vector(high, b + i * kPanelColumns + kWidth);
    for (int r = 0; r < kRows; ++r) {
      const float x = a[r * a_row + i];
      sum[r][0] += x * low;
      sum[r][1] += x * high;
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < 2; ++v) store_vector(c + r * c_row + v * kWidth, sum[r][v]);
}
using Tile = void (*)(std::int64_t, const float*, std::int64_t, const float*, float*, std::int64_t);
constexpr Tile kTiles[kMostRows] = {&multiply_tile<1>, &multiply_tile<2>, &multiply_tile<3>,
                                    &multiply_tile<4>, &multiply_tile<5>, &multiply_tile<6>};

// Computes one panel of c.
void multiply_panel(const PackedGemmArgs& g, std::int64_t panel) {
  const std::int64_t first = panel * kPanelColumns, columns = std::min(kPanelColumns, g.n - first);
  const float* const a = g.a.as<float>();
  const float* const b = g.packed.as<float>() + first * g.k;
  const float* const bias = g.bias ? g.bias.as<float>() + first : nullptr;
  float* const c = g.c.as<float>() + first;
  for (std::int64_t i = 0; i < g.m; ++i) {
    float* const row = c + i * g.c_row;
    if (!g.accumulate && bias) std::copy_n(bias, columns, row);
    else if (!g.accumulate) std::fill_n(row, columns, 0.0f);
    else if (bias)
      for (std::int64_t j = 0; j < columns; ++j) row[j] += bias[j];
  }
  const auto run = [&](float* to, std::int64_t to_row, std::int64_t begin, std::int64_t rows) {
    for (std::int64_t at = 0; at < g.k; at += kDepth)
      for (std::int64_t i = 0; i < rows;) {
        const std::int64_t left = rows - i;
        // 7 and 8 rows are divided evenly: with few rows, a tile waits for its own sums.
        const std::int64_t height = left <= kMostRows ? left : left <= 8 ? 4 : kMostRows;
        kTiles[height - 1](std::min(kDepth, g.k - at), a + (begin + i) * g.a_row + at, g.a_row,
                           b + at * kPanelColumns, to + i * to_row, to_row);
        i += height;
      }
  };
  if (columns == kPanelColumns) return run(c, g.c_row, 0, g.m);
  // The last panel has fewer columns than a tile, so tiles of it are computed beside c.
  float beside[kMostRows * kPanelColumns];
  for (std::int64_t i = 0; i < g.m; i += kMostRows) {
    const std::int64_t rows = std::min<std::int64_t>(kMostRows, g.m - i);
    std::fill_n(beside, kMostRows * kPanelColumns, 0.0f);
    for (std::int64_t r = 0; r < rows; ++r)
      std::copy_n(c + (i + r) * g.c_row, columns, beside + r * kPanelColumns);
    run(beside, kPanelColumns, i, rows);
    for (std::int64_t r = 0; r < rows; ++r)
      std::copy_n(beside + r * kPanelColumns, columns, c + (i + r) * g.c_row);
  }
}

void packed_gemm_kernel(const LaunchContext&, const PackedGemmArgs& g) {
  if (g.m == 0) return;
  const std::int64_t panels = (g.n + kPanelColumns - 1) / kPanelColumns;
  const std::int64_t work = g.m * std::max<std::int64_t>(g.k, 1) * kPanelColumns;
  parallel_for(panels, std::max<std::int64_t>(131072 / work, 1), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t panel = begin; panel < end; ++panel) multiply_panel(g, panel);
  });
}

void pack_kernel(const LaunchContext&, const PackArgs& p) {
  const float* const b = p.b.as<float>();
  float* const packed = p.packed.as<float>();
  const std::int64_t panels = (p.n + kPanelColumns - 1) / kPanelColumns;
  const std::int64_t row = p.b_strides.row, column = p.b_strides.col;
  parallel_for(panels, grain_of(4 * p.k * kPanelColumns), [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t panel = begin; panel < end; ++panel) {
      const std::int64_t first = panel * kPanelColumns, columns = std::min(kPanelColumns, p.n - first);
      const float* from = b + first * column;
      float* to = packed + first * p.k;
      for (std::int64_t i = 0; i < p.k; ++i, from += row, to += kPanelColumns) {
        for (std::int64_t j = 0; j < columns; ++j) to[j] = from[j * column];
        std::fill(to + columns, to + kPanelColumns, 0.0f);
      }
    }
  });
}

const bool filled = [] {
  pack_matrix.set(DeviceType::cpu, DType::f32, &pack_kernel);
  packed_gemm.set(DeviceType::cpu, DType::f32, &packed_gemm_kernel);
  return true;
}();

}  // namespace
}  // namespace tapestry::kernels::cpu
