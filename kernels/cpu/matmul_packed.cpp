// Matrix products with a packed factor. A unit of work is a tile: some rows of c, one panel wide. Its sums
// stay in registers for the whole depth. Each thread has panels of its own, which stay in its cache from
// product to product.
#include "tapestry/kernels/cpu/matmul_packed.h"

#include <algorithm>
#include <cstring>

#include "tapestry/kernels/cpu/compute.h"
#include "tapestry/kernels/cpu/grain.h"
#include "tapestry/kernels/cpu/matmul_amx.h"
#include "tapestry/kernels/cpu/tile.h"

namespace tapestry::kernels::cpu {
namespace {

// Two vectors of AVX2 for each of six rows take 12 of its 16 registers.
constexpr std::int64_t kWidth = 8;

typedef float Vector __attribute__((vector_size(kWidth * sizeof(float))));  // NOLINT: GNU's vector types

// Vectors are not returned: without AVX, the ABI of that depends on the compiler's version.
inline void load_vector(Vector& v, const float* from) { std::memcpy(&v, from, sizeof(v)); }
inline void store_vector(float* to, const Vector& v) { std::memcpy(to, &v, sizeof(v)); }

template <int kRows>
void plain_tile(std::int64_t k, const void* rows, std::int64_t a_row, const void* panel, float* sums,
                std::int64_t sums_row) {
  const auto* const a = static_cast<const float*>(rows);
  for (std::int64_t part = 0; part < kPanelColumns; part += 2 * kWidth) {
    const auto* b = static_cast<const float*>(panel) + part;
    float* const c = sums + part;
    Vector sum[kRows][2];
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < 2; ++v) load_vector(sum[r][v], c + r * sums_row + v * kWidth);
    for (std::int64_t i = 0; i < k; ++i, b += kPanelColumns) {
      Vector low, high;
      load_vector(low, b);
      load_vector(high, b + kWidth);
      for (int r = 0; r < kRows; ++r) {
        const float x = a[r * a_row + i];
        sum[r][0] += x * low;
        sum[r][1] += x * high;
      }
    }
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < 2; ++v) store_vector(c + r * sums_row + v * kWidth, sum[r][v]);
  }
}
constexpr PackedTiles kPlain = {
    6,
    {&plain_tile<1>, &plain_tile<2>, &plain_tile<3>, &plain_tile<4>, &plain_tile<5>, &plain_tile<6>},
    false};
// With AMX, the tiles serve any number of rows: a panel takes the time of loading it, or of the rows.
constexpr PackedTiles kAmx = {kAmxRows, {}, true};

template <class T>
const PackedTiles& tiles() {
  if (is_half<T> && amx_tiles()) return kAmx;
  const PackedTiles* const wide = wide_packed_tiles(is_half<T>);
  return wide ? *wide : kPlain;
}

void copy_in(const float* x, float* y, std::int64_t n) { std::copy_n(x, n, y); }
void copy_in(const BFloat16* x, float* y, std::int64_t n) { to_float(x, y, n); }
void copy_out(const float* x, float* y, std::int64_t n) { std::copy_n(x, n, y); }
void copy_out(const float* x, BFloat16* y, std::int64_t n) { from_float(x, y, n); }

// What the product is added to, for `columns` columns of one row of c: the old c and the bias.
template <class T>
[[gnu::always_inline]] inline void start_row(const T* c, const T* bias, bool accumulate, std::int64_t columns,
                                             float* sums) {
  if (accumulate) copy_in(c, sums, columns);
  else if (bias) copy_in(bias, sums, columns);
  else std::fill_n(sums, columns, 0.0f);
  if (accumulate && bias)
    for (std::int64_t j = 0; j < columns; ++j) sums[j] += load(bias[j]);
}
template <class T>
void start_rows(std::int64_t rows, const T* c, std::int64_t c_row, const T* bias, bool accumulate,
                std::int64_t columns, float* sums, std::int64_t sums_row = kPanelColumns) {
  for (; rows > 0; --rows, c += c_row, sums += sums_row)
    if (columns == kPanelColumns) {  // a constant, for which the loops become a few vector instructions
      start_row(c, bias, accumulate, kPanelColumns, sums);
    } else {
      start_row(c, bias, accumulate, columns, sums);
      std::fill_n(sums + columns, kPanelColumns - columns, 0.0f);
    }
}
template <class T>
void finish_rows(std::int64_t rows, const float* sums, std::int64_t columns, T* c, std::int64_t c_row) {
  for (; rows > 0; --rows, c += c_row, sums += kPanelColumns)
    if (columns == kPanelColumns) copy_out(sums, c, kPanelColumns);
    else copy_out(sums, c, columns);
}

// A is the dtype of a that the tiles read.
template <class T, class A>
void multiply(const PackedGemmArgs& g, const PackedTiles& tiles, const A* a, std::int64_t a_row) {
  const std::int64_t panels = (g.n + kPanelColumns - 1) / kPanelColumns;
  // The rows are divided evenly, because in a tile of few rows each addition waits for the one before it.
  const std::int64_t parts = (g.m + tiles.most_rows - 1) / tiles.most_rows;
  const std::int64_t panel_bytes = tiles.pairs ? (g.k + 1) / 2 * kPanelColumns * 4 : g.k * kPanelColumns * 4;
  const auto* const packed = reinterpret_cast<const char*>(g.packed.as<float>());
  T* const c = g.c.as<T>();
  const T* const bias = g.bias.as<T>();
  const std::int64_t work = (g.m + parts - 1) / parts * std::max<std::int64_t>(g.k, 1) * kPanelColumns;
  parallel_for(
      panels * parts, std::max<std::int64_t>(131072 / work, 1), [&](std::int64_t begin, std::int64_t end) {
        alignas(64) float sums[kAmxRows * kPanelColumns];
        AmxTiles registers;
        for (std::int64_t unit = begin; unit < end; ++unit) {
          const std::int64_t panel = unit / parts, part = unit % parts;
          const std::int64_t first = panel * kPanelColumns, columns = std::min(kPanelColumns, g.n - first);
          const std::int64_t row = g.m * part / parts, rows = g.m * (part + 1) / parts - row;
          T* const to = c + row * g.c_row + first;
          const char* const b = packed + panel * panel_bytes;
          if constexpr (std::is_same_v<T, float>)
            if (columns == kPanelColumns && !(g.accumulate && bias)) {  // the sums are those in c
              if (!g.accumulate)
                start_rows(rows, to, g.c_row, bias ? bias + first : nullptr, false, columns, to, g.c_row);
              tiles.tile[rows - 1](g.k, a + row * a_row, a_row, b, to, g.c_row);
              continue;
            }
          start_rows(rows, to, g.c_row, bias ? bias + first : nullptr, g.accumulate, columns, sums);
          if (tiles.tile[0]) {
            tiles.tile[rows - 1](g.k, a + row * a_row, a_row, b, sums, kPanelColumns);
          } else if constexpr (is_half<A>) {
            registers.multiply({.m = rows,
                                .n = kPanelColumns,
                                .depth = g.k,
                                .a = a + row * a_row,
                                .a_row = a_row,
                                .b = reinterpret_cast<const BFloat16*>(b),
                                .b_panel = 0,
                                .c = sums,
                                .c_row = kPanelColumns,
                                .accumulate = true});
          }
          finish_rows(rows, sums, columns, to, g.c_row);
        }
      });
}

template <class T>
void packed_gemm_kernel(const LaunchContext& context, const PackedGemmArgs& g) {
  if (g.m == 0) return;
  const PackedTiles& t = tiles<T>();
  const T* const a = g.a.as<T>();
  if constexpr (is_half<T>) {
    if (!t.pairs) {
      const Scratch<float> wide(context.device, g.m * g.k);
      for (std::int64_t i = 0; i < g.m; ++i) to_float(a + i * g.a_row, wide.data() + i * g.k, g.k);
      return multiply<T>(g, t, static_cast<const float*>(wide.data()), g.k);
    }
  }
  multiply<T>(g, t, a, g.a_row);
}

template <class T>
void pack_kernel(const LaunchContext&, const PackArgs& p) {
  const T* const b = p.b.as<T>();
  [[maybe_unused]] const bool pairs = tiles<T>().pairs;
  const std::int64_t panels = (p.n + kPanelColumns - 1) / kPanelColumns;
  const std::int64_t row = p.b_strides.row, column = p.b_strides.col;
  parallel_for(panels, grain_of(4 * p.k * kPanelColumns), [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t panel = begin; panel < end; ++panel) {
      const std::int64_t first = panel * kPanelColumns, columns = std::min(kPanelColumns, p.n - first);
      const T* from = b + first * column;
      if constexpr (is_half<T>)
        if (pairs) {
          pack_pairs(p.k, columns, from, p.b_strides,
                     reinterpret_cast<T*>(p.packed.as<float>()) + first * ((p.k + 1) / 2 * 2));
          continue;
        }
      float* to = p.packed.as<float>() + first * p.k;
      for (std::int64_t i = 0; i < p.k; ++i, from += row, to += kPanelColumns) {
        for (std::int64_t j = 0; j < columns; ++j) to[j] = load(from[j * column]);
        std::fill(to + columns, to + kPanelColumns, 0.0f);
      }
    }
  });
}

[[maybe_unused]] const bool filled = for_types<float, BFloat16>([]<class T> {
  pack_matrix.set(DeviceType::cpu, dtype_of<T>, &pack_kernel<T>);
  packed_gemm.set(DeviceType::cpu, dtype_of<T>, &packed_gemm_kernel<T>);
});

}  // namespace

void pack_pairs(std::int64_t k, std::int64_t columns, const BFloat16* b, MatrixStrides strides,
                BFloat16* to) {
  const auto [row, column] = strides;
  // Where the columns of b are contiguous, the panel is the transposed matrix of their pairs. Squares of 8
  // columns and 8 pairs are written first.
  const std::int64_t square_rows = row == 1 && columns >= 8 ? k / 16 * 16 : 0,
                     square_columns = columns / 8 * 8;
  for (std::int64_t i = 0; i < square_rows; i += 16)
    for (std::int64_t j = 0; j < square_columns; j += 8)
      transpose_square(b + j * column + i, 2 * column,
                       reinterpret_cast<float*>(to + i * kPanelColumns + 2 * j), kPanelColumns);
  for (std::int64_t i = 0; i < k; i += 2, to += 2 * kPanelColumns) {
    const BFloat16 *const first = b + i * row, *const second = i + 1 < k ? first + row : nullptr;
    if (column == 1 && columns == kPanelColumns && second) {
      std::uint32_t pairs[kPanelColumns];
      for (std::int64_t j = 0; j < kPanelColumns; ++j)
        pairs[j] = first[j].bits | static_cast<std::uint32_t>(second[j].bits) << 16;
      std::memcpy(static_cast<void*>(to), pairs, sizeof pairs);
      continue;
    }
    for (std::int64_t j = i < square_rows ? square_columns : 0; j < kPanelColumns; ++j) {
      to[2 * j] = j < columns ? first[j * column] : BFloat16();
      to[2 * j + 1] = j < columns && second ? second[j * column] : BFloat16();
    }
  }
}

}  // namespace tapestry::kernels::cpu
