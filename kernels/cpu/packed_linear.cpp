// Products of f32 with packed weights, which are unpacked in parts that stay in the cache.
#include "tapestry/kernels/ops/packed_linear.h"

#include <algorithm>
#include <functional>

#include "tapestry/kernels/cpu/compute.h"
#include "tapestry/kernels/cpu/rows.h"
#include "tapestry/kernels/cpu/tile.h"

namespace tapestry::kernels::cpu {
namespace {

using tapestry::detail::unpack_blocks;

// With fewer rows of x, unpacking takes longer than the products, so each row of the weight is used where it
// was unpacked.
constexpr std::int64_t kFewRows = 4;
// So many rows of a panel of 16 columns take 16 KiB, half of an L1 cache of 32 KiB.
constexpr std::int64_t kDepth = 256;
// The backward product unpacks parts of so many rows and columns. A part takes 256 KiB, a quarter of an L2
// cache of 1 MiB.
constexpr std::int64_t kPartRows = 128, kPartColumns = 512;

constexpr std::int64_t padded(std::int64_t n) { return (n + kTileColumns - 1) / kTileColumns * kTileColumns; }

// Unpacks the columns [begin, end) of a row, which are whole blocks.
void unpack_part(const PackedMatrix& w, std::int64_t row, std::int64_t begin, std::int64_t end, float* to) {
  const BlockLayout& layout = block_layout(w.type);
  const std::int64_t first = (row * w.columns + begin) / layout.elements;
  unpack_blocks(w.type, w.blocks + first * layout.bytes, (end - begin) / layout.elements, to);
}

void few_rows(const LaunchContext& context, const PackedLinearArgs& a) {
  const PackedMatrix& w = a.weight;
  const std::int64_t k = w.columns;
  const float *const x = a.x.as<float>(), *const bias = a.bias.as<float>();
  float* const y = a.y.as<float>();
  parallel_for(w.rows, grain_of(2 * k), [&](std::int64_t begin, std::int64_t end) {
    const Scratch<float> scratch(context.device, k);
    float* const line = scratch.data();
    for (std::int64_t j = begin; j < end; ++j) {
      unpack_part(w, j, 0, k, line);
      for (std::int64_t i = 0; i < a.m; ++i) {
        const float* const row = x + i * k;
        const float sum = fold_lanes(
            k, 0.0f, [=](std::int64_t c) { return row[c] * line[c]; }, std::plus<>());
        y[i * w.rows + j] = bias ? sum + bias[j] : sum;
      }
    }
  });
}

// Computes kTileColumns columns of y at a time.
void panels(const LaunchContext& context, const PackedLinearArgs& a) {
  const PackedMatrix& w = a.weight;
  const std::int64_t n = w.rows, k = w.columns;
  const float *const x = a.x.as<float>(), *const bias = a.bias.as<float>();
  float* const y = a.y.as<float>();
  parallel_for(padded(n) / kTileColumns, 1, [&](std::int64_t begin, std::int64_t end) {
    const Scratch<float> scratch(context.device, 2 * kTileColumns * k),
        beside(context.device, a.m * kTileColumns);
    float *const lines = scratch.data(), *const panel = lines + kTileColumns * k;
    for (std::int64_t p = begin; p < end; ++p) {
      const std::int64_t first = p * kTileColumns, columns = std::min(kTileColumns, n - first);
      for (std::int64_t j = 0; j < columns; ++j) unpack_part(w, first + j, 0, k, lines + j * k);
      std::fill(lines + columns * k, lines + kTileColumns * k, 0.0f);
      for (std::int64_t i = 0; i < k; ++i)
        for (std::int64_t j = 0; j < kTileColumns; ++j) panel[i * kTileColumns + j] = lines[j * k + i];
      // The last panel has fewer columns than a tile.
      const bool whole = columns == kTileColumns;
      float* const c = whole ? y + first : beside.data();
      const std::int64_t c_row = whole ? n : kTileColumns;
      for (std::int64_t i = 0; i < a.m; ++i)
        if (bias) std::copy_n(bias + first, columns, c + i * c_row);
        else std::fill_n(c + i * c_row, columns, 0.0f);
      if (!whole)
        for (std::int64_t i = 0; i < a.m; ++i)
          std::fill_n(c + i * c_row + columns, kTileColumns - columns, 0.0f);
      for (std::int64_t at = 0; at < k; at += kDepth)
        multiply_tiles({.m = a.m,
                        .n = kTileColumns,
                        .depth = std::min(kDepth, k - at),
                        .a = x + at,
                        .a_row = k,
                        .a_step = 1,
                        .b = panel + at * kTileColumns,
                        .b_panel = 0,
                        .b_row = kTileColumns,
                        .c = c,
                        .c_row = c_row,
                        .accumulate = true});
      if (!whole)
        for (std::int64_t i = 0; i < a.m; ++i) std::copy_n(c + i * c_row, columns, y + i * n + first);
    }
  });
}

void packed_linear_kernel(const LaunchContext& context, const PackedLinearArgs& a) {
  if (a.m == 0 || a.weight.rows == 0) return;
  if (a.m <= kFewRows) few_rows(context, a);
  else panels(context, a);
}

void packed_linear_backward_kernel(const LaunchContext& context, const PackedBackwardArgs& a) {
  const PackedMatrix& w = a.weight;
  const std::int64_t n = w.rows, k = w.columns;
  if (a.m == 0 || k == 0) return;
  const float* const x = a.x.as<float>();
  float* const y = a.y.as<float>();
  // Threads divide the columns. Sums are over the rows alone, in one order.
  const std::int64_t unit = std::max(block_layout(w.type).elements, kTileColumns);
  parallel_for((k + unit - 1) / unit, grain_of(unit * n * a.m / 8),
               [&](std::int64_t begin, std::int64_t end) {
                 const std::int64_t stop = std::min(end * unit, k);
                 const Scratch<float> scratch(context.device, kPartRows * kPartColumns + kPartColumns);
                 float *const part = scratch.data(), *const line = part + kPartRows * kPartColumns;
                 for (std::int64_t at = begin * unit; at < stop; at += kPartColumns) {
                   const std::int64_t columns = std::min(kPartColumns, stop - at), wide = padded(columns);
                   // Only the last columns of a matrix of single numbers are no whole panel.
                   const Scratch<float> beside(context.device, wide == columns ? 0 : a.m * wide);
                   float* const c = wide == columns ? y + at : beside.data();
                   const std::int64_t c_row = wide == columns ? k : wide;
                   for (std::int64_t i = 0; i < a.m; ++i) std::fill_n(c + i * c_row, wide, 0.0f);
                   for (std::int64_t first = 0; first < n; first += kPartRows) {
                     const std::int64_t rows = std::min(kPartRows, n - first);
                     std::fill(line + columns, line + wide, 0.0f);
                     for (std::int64_t r = 0; r < rows; ++r) {
                       unpack_part(w, first + r, at, at + columns, line);
                       for (std::int64_t j = 0; j < wide; j += kTileColumns)
                         std::copy_n(line + j, kTileColumns, part + j * kPartRows + r * kTileColumns);
                     }
                     multiply_tiles({.m = a.m,
                                     .n = wide,
                                     .depth = rows,
                                     .a = x + first,
                                     .a_row = n,
                                     .a_step = 1,
                                     .b = part,
                                     .b_panel = kPartRows * kTileColumns,
                                     .b_row = kTileColumns,
                                     .c = c,
                                     .c_row = c_row,
                                     .accumulate = true});
                   }
                   if (wide != columns)
                     for (std::int64_t i = 0; i < a.m; ++i)
                       std::copy_n(c + i * c_row, columns, y + i * k + at);
                 }
               });
}

[[maybe_unused]] const bool filled = [] {
  packed_linear.set(DeviceType::cpu, DType::f32, &packed_linear_kernel);
  packed_linear_backward.set(DeviceType::cpu, DType::f32, &packed_linear_backward_kernel);
  return true;
}();

}  // namespace
}  // namespace tapestry::kernels::cpu
