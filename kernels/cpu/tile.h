#pragma once
// Small matrix products inside one thread, for kernels that compute on blocks in the cache.
#include <cstdint>
#include <cstring>

#include "tapestry/kernels/cpu/wide.h"

#ifdef __FMA__
#include <immintrin.h>
#endif

namespace tapestry::kernels::cpu {

/// The columns of a panel: two AVX vectors of f32. Six rows of such a panel take 12 of AVX2's 16 registers.
inline constexpr std::int64_t kTileColumns = 16;
inline constexpr std::int64_t kTileRows = 6;

typedef float TileVector __attribute__((vector_size(8 * sizeof(float))));  // NOLINT: GNU's vector types

/// The operands of c = a b or c += a b, for an (m, depth) matrix a, a (depth, n) matrix b, and an (m, n)
/// matrix c. n is a multiple of kTileColumns. Element (i, p) of a is a[i a_row + p a_step]. Column panel j of
/// b begins at b + j b_panel, and its rows are b_row apart. The rows of c are contiguous and c_row apart.
struct TileProduct {
  std::int64_t m, n, depth;
  const float* a;
  std::int64_t a_row, a_step;
  const float* b;
  std::int64_t b_panel, b_row;
  float* c;
  std::int64_t c_row;
  bool accumulate;
};

namespace detail {
// Vectors are not returned: without AVX, the ABI of that depends on the compiler's version.
inline void load_tile(TileVector& v, const float* from) { std::memcpy(&v, from, sizeof(v)); }
inline void store_tile(float* to, const TileVector& v) { std::memcpy(to, &v, sizeof(v)); }

// sum += a b. Compilers fuse the two operations only when they optimize. Attention computes scores by tiles
// and by dot products, and takes the difference of the two, so both must round alike in every build.
#ifdef __FMA__
inline void add_product(TileVector& sum, const TileVector& a, const TileVector& b) {
  sum = _mm256_fmadd_ps(a, b, sum);
}
inline void add_product(TileVector& sum, float a, const TileVector& b) {
  sum = _mm256_fmadd_ps(_mm256_set1_ps(a), b, sum);
}
inline void add_product(float& sum, float a, float b) { sum = __builtin_fmaf(a, b, sum); }
#else
template <class Sum, class A>
inline void add_product(Sum& sum, const A& a, const Sum& b) {
  sum += a * b;
}
#endif

template <int kRows>
inline void multiply_tile(const TileProduct& t, const float* a, const float* b, float* c) {
  TileVector sum[kRows][2] = {};
  if (t.accumulate)
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < 2; ++v) load_tile(sum[r][v], c + r * t.c_row + v * 8);
  const std::int64_t depth = t.depth, a_row = t.a_row, a_step = t.a_step, b_row = t.b_row;
  for (std::int64_t p = 0; p < depth; ++p, a += a_step, b += b_row) {
    TileVector low, high;
    load_tile(low, b);
    load_tile(high, b + 8);
    for (int r = 0; r < kRows; ++r) {
      const float x = a[r * a_row];
      add_product(sum[r][0], x, low);
      add_product(sum[r][1], x, high);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < 2; ++v) store_tile(c + r * t.c_row + v * 8, sum[r][v]);
}
}  // namespace detail

/// The product by AVX-512 (matmul_tile_wide.cpp). Processors with two units for AVX-512 multiply twice as
/// fast by it as by AVX2, and Zen 4 about as fast.
void multiply_wide_tiles(const TileProduct& t);

/// Computes the product. A panel of b is read once for every few rows of a, so it should fit in the L1 cache.
/// With FMA, an element is a chain of fused multiply-adds in the order of the depth, whatever the size of the
/// tiles. So tiles of AVX2 and of AVX-512 give the same bits.
inline void multiply_tiles(const TileProduct& t) {
#ifdef TAPESTRY_WIDE_LOOPS
  if (wide_loops()) return multiply_wide_tiles(t);
#endif
  for (std::int64_t j = 0; j < t.n; j += kTileColumns) {
    const float* const b = t.b + j / kTileColumns * t.b_panel;
    float* const c = t.c + j;
    std::int64_t i = 0;
    for (; i + kTileRows <= t.m; i += kTileRows)
      detail::multiply_tile<kTileRows>(t, t.a + i * t.a_row, b, c + i * t.c_row);
    const float* const a = t.a + i * t.a_row;
    switch (t.m - i) {
      case 1:
        detail::multiply_tile<1>(t, a, b, c + i * t.c_row);
        break;
      case 2:
        detail::multiply_tile<2>(t, a, b, c + i * t.c_row);
        break;
      case 3:
        detail::multiply_tile<3>(t, a, b, c + i * t.c_row);
        break;
      case 4:
        detail::multiply_tile<4>(t, a, b, c + i * t.c_row);
        break;
      case 5:
        detail::multiply_tile<5>(t, a, b, c + i * t.c_row);
        break;
      default:
        break;
    }
  }
}

/// Writes the transposed matrix of 8 rows and 8 columns. An element is 4 bytes of any type, whose bits are
/// kept. The rows of `from` begin `from_bytes` bytes apart, at any address, those of `to` to_row elements.
inline void transpose_square(const void* from, std::int64_t from_bytes, float* to, std::int64_t to_row) {
  TileVector r[8], pairs[8], fours[8];
  for (int i = 0; i < 8; ++i)
    std::memcpy(&r[i], static_cast<const char*>(from) + i * from_bytes, sizeof r[i]);
  for (int i = 0; i < 8; i += 2) {  // pairs[i] has columns 0, 1, 4 and 5 of rows i and i + 1
    pairs[i] = __builtin_shufflevector(r[i], r[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    pairs[i + 1] = __builtin_shufflevector(r[i], r[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
  for (int i = 0; i < 8; i += 4)
    for (int c = 0; c < 2; ++c) {  // fours[i + j] has columns j and j + 4 of rows i to i + 3
      const TileVector &low = pairs[i + c], &high = pairs[i + 2 + c];
      fours[i + 2 * c] = __builtin_shufflevector(low, high, 0, 1, 8, 9, 4, 5, 12, 13);
      fours[i + 2 * c + 1] = __builtin_shufflevector(low, high, 2, 3, 10, 11, 6, 7, 14, 15);
    }
  for (int c = 0; c < 4; ++c) {
    detail::store_tile(to + c * to_row,
                       __builtin_shufflevector(fours[c], fours[4 + c], 0, 1, 2, 3, 8, 9, 10, 11));
    detail::store_tile(to + (c + 4) * to_row,
                       __builtin_shufflevector(fours[c], fours[4 + c], 4, 5, 6, 7, 12, 13, 14, 15));
  }
}

}  // namespace tapestry::kernels::cpu
