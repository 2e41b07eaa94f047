#pragma once
// What attention's forward and backward pass share. Both compute block by block (Dao 2023,
// "FlashAttention-2", algorithms 1 and 2). A block is kQueries queries by kKeys keys. Its scores, 48 KiB,
// stay in the L2 cache between the two products, and so are never written to memory. The inner loops of a
// product read one or two panels of 16 keys, or of 16 features of the values, again and again. With up to 128
// features these panels take at most 16 KiB, and stay in the L1 cache. The number of keys of a block decides
// the order of sums, so it must not depend on the processor: ranks of a job would get different bits in f32
// and f16. In bf16 they do if only some of them have AMX.
#include "tapestry/kernels/ops/attention.h"

#include <algorithm>
#include <limits>

#include "tapestry/core/philox.h"
#include "tapestry/kernels/cpu/compute.h"
#include "tapestry/kernels/cpu/matmul_packed.h"
#include "tapestry/kernels/cpu/tile.h"

namespace tapestry::kernels::cpu::attention_parts {

inline constexpr std::int64_t kKeys = 128;
inline constexpr std::int64_t kQueries = 96;  // a multiple of kTileRows
// Queries with a causal mask are computed in smaller blocks, which reach less far into what the mask hides.
inline constexpr std::int64_t kCausalQueries = 48;
// With fewer queries, copying the keys into panels would take longer than the products.
inline constexpr std::int64_t kFewQueries = 4;
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

constexpr std::int64_t padded(std::int64_t columns) {
  return (columns + kTileColumns - 1) / kTileColumns * kTileColumns;
}
constexpr std::int64_t in_panels(std::int64_t columns) {
  return (columns + kPanelColumns - 1) / kPanelColumns * kPanelColumns;
}
constexpr std::int64_t queries_of(bool causal) { return causal ? kCausalQueries : kQueries; }
constexpr std::int64_t blocks(std::int64_t n, std::int64_t size) { return (n + size - 1) / size; }

template <class T>
void widen(const T* from, float* to, std::int64_t n) {
  if constexpr (is_half<T>) to_float(from, to, n);
  else std::copy_n(from, n, to);
}
template <class T>
void narrow(const float* from, T* to, std::int64_t n) {
  if constexpr (is_half<T>) from_float(from, to, n);
  else std::copy_n(from, n, to);
}

// Copies rows to an array whose rows have `width` elements, a multiple of kTileColumns. The rest of a row
// becomes 0.
template <class T>
void copy_rows(const T* from, std::int64_t from_row, std::int64_t rows, std::int64_t columns, float* to,
               std::int64_t width, float factor = 1) {
  for (std::int64_t i = 0; i < rows; ++i, from += from_row, to += width) {
    widen(from, to, columns);
    if (factor != 1)
      for (std::int64_t j = 0; j < columns; ++j) to[j] *= factor;
    std::fill(to + columns, to + width, 0.0f);
  }
}

// Copies rows to panels of the transposed matrix: panel j has kTileColumns rows as its columns. Missing rows
// of the last panel become 0.
template <class T>
void copy_transposed(const T* from, std::int64_t from_row, std::int64_t rows, std::int64_t columns,
                     float* to) {
  float line[64];
  for (std::int64_t i = 0; i < padded(rows); ++i) {
    float* const column = to + i / kTileColumns * columns * kTileColumns + i % kTileColumns;
    std::int64_t begin = 0;
    if constexpr (std::is_same_v<T, float>) {
      if (i / 8 * 8 + 8 <= rows) {
        if (i % 8 == 0)
          for (std::int64_t c = 0; c + 8 <= columns; c += 8)
            transpose_square(from + i * from_row + c, 4 * from_row, column + c * kTileColumns, kTileColumns);
        begin = columns / 8 * 8;  // the squares have the columns before
      }
    }
    for (std::int64_t c = begin; c < columns; c += 64) {
      const std::int64_t n = std::min<std::int64_t>(64, columns - c);
      if (i < rows) widen(from + i * from_row + c, line, n);
      else std::fill_n(line, n, 0.0f);
      for (std::int64_t e = 0; e < n; ++e) column[(c + e) * kTileColumns] = line[e];
    }
  }
}

// The elements of a panel of pairs of k rows.
constexpr std::int64_t pair_panel(std::int64_t k) { return (k + 1) / 2 * 2 * kPanelColumns; }
// Writes the panels of a matrix of k rows and n columns, which begin `panel` elements apart.
inline void pack_panels(std::int64_t k, std::int64_t n, const BFloat16* b, MatrixStrides strides,
                        BFloat16* to, std::int64_t panel) {
  for (std::int64_t j = 0; j < n; j += kPanelColumns, to += panel)
    pack_pairs(k, std::min(kPanelColumns, n - j), b + j * strides.col, strides, to);
}

// The rows of one head.
template <class T>
const T* head_of(const ConstArray& x, const AttentionStrides& s, std::int64_t batch, std::int64_t head) {
  return x.as<T>() + batch * s.batch + head * s.head;
}
template <class T>
T* head_of(const MutableArray& x, const AttentionStrides& s, std::int64_t batch, std::int64_t head) {
  return x.as<T>() + batch * s.batch + head * s.head;
}

// Applies the mask to the scores of query i and the keys that begin at `first`. s has padded(n) scores of n
// keys.
template <class T>
void mask_row(const AttentionMask& m, std::int64_t batch, std::int64_t head, std::int64_t i,
              std::int64_t first, std::int64_t n, float* s) {
  if (m.mask) {
    const std::int64_t at = batch * m.batch + head * m.head + i * m.query + first * m.key;
    if (m.mask.dtype() == DType::boolean) {
      const bool* const seen = m.mask.as<bool>() + at;
      for (std::int64_t j = 0; j < n; ++j) s[j] = seen[j * m.key] ? s[j] : -kInfinity;
    } else {
      const T* const added = m.mask.as<T>() + at;
      for (std::int64_t j = 0; j < n; ++j) s[j] += load(added[j * m.key]);
    }
  }
  const std::int64_t visible = m.causal ? std::clamp<std::int64_t>(i + 1 + m.offset - first, 0, n) : n;
  std::fill(s + visible, s + padded(n), -kInfinity);
}

// The number of the n keys from `first` on that some query before `end` may see.
inline std::int64_t visible_to(const AttentionMask& m, std::int64_t end, std::int64_t first, std::int64_t n) {
  return m.causal ? std::clamp<std::int64_t>(end + m.offset - first, 0, n) : n;
}

// Applies dropout to what belongs to the weights of query i and the keys that begin at `first`.
inline void drop_row(const AttentionDropout& d, const AttentionShape& s, std::int64_t batch,
                     std::int64_t head, std::int64_t i, std::int64_t first, std::int64_t n, float* x) {
  if (d.threshold == 0) return;
  const auto scale = static_cast<float>(d.scale);
  const auto begin = static_cast<std::uint64_t>(((batch * s.heads + head) * s.queries + i) * s.keys + first);
  Philox4 four = philox(d.range.seed, d.range.offset + begin / 4);
  for (std::int64_t j = 0; j < n; ++j) {
    const std::uint64_t e = begin + static_cast<std::uint64_t>(j);
    if (j > 0 && e % 4 == 0) four = philox(d.range.seed, d.range.offset + e / 4);
    x[j] = four.v[e % 4] >> 8 >= d.threshold ? x[j] * scale : 0.0f;
  }
}

}  // namespace tapestry::kernels::cpu::attention_parts
