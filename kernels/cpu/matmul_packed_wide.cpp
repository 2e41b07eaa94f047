// Tiles of 14 rows and two vectors of columns: 28 sums, a row of the panel and one number of a take 31 of
// AVX-512's 32 registers.
#include "tapestry/kernels/cpu/matmul_packed.h"

#include "tapestry/kernels/cpu/bf16_dot.h"
#include "tapestry/kernels/cpu/isa.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <cstring>
#include <utility>

#include <immintrin.h>

#define TAPESTRY_WIDE_CODE [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl")]]
#define TAPESTRY_BF16_CODE [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]]

namespace tapestry::kernels::cpu {
namespace {

static_assert(kPanelColumns == 32);

template <int kRows>
TAPESTRY_WIDE_CODE void tile_f32(std::int64_t k, const void* rows, std::int64_t a_row, const void* panel,
                                 float* sums, std::int64_t sums_row) {
  const auto* const a = static_cast<const float*>(rows);
  const auto* b = static_cast<const float*>(panel);
  __m512 sum[kRows][2];
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < 2; ++v) sum[r][v] = _mm512_loadu_ps(sums + r * sums_row + v * 16);
  for (std::int64_t i = 0; i < k; ++i, b += kPanelColumns) {
    const __m512 low = _mm512_loadu_ps(b), high = _mm512_loadu_ps(b + 16);
    for (int r = 0; r < kRows; ++r) {
      const __m512 x = _mm512_set1_ps(a[r * a_row + i]);
      sum[r][0] = _mm512_fmadd_ps(x, low, sum[r][0]);
      sum[r][1] = _mm512_fmadd_ps(x, high, sum[r][1]);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < 2; ++v) _mm512_storeu_ps(sums + r * sums_row + v * 16, sum[r][v]);
}

TAPESTRY_BF16_CODE inline std::int32_t pair_at(const std::uint16_t* a) {
  std::int32_t pair;
  std::memcpy(&pair, a, sizeof pair);
  return pair;
}

template <int kRows>
TAPESTRY_BF16_CODE void tile_bf16(std::int64_t k, const void* rows, std::int64_t a_row, const void* panel,
                                  float* sums, std::int64_t sums_row) {
  const auto* const a = static_cast<const std::uint16_t*>(rows);
  const auto* b = static_cast<const std::uint16_t*>(panel);
  __m512 sum[kRows][2];
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < 2; ++v) sum[r][v] = _mm512_loadu_ps(sums + r * sums_row + v * 16);
  for (std::int64_t i = 0; i + 1 < k; i += 2, b += 2 * kPanelColumns) {
    const auto low = (__m512bh)_mm512_loadu_si512(b), high = (__m512bh)_mm512_loadu_si512(b + kPanelColumns);
    for (int r = 0; r < kRows; ++r) {
      const auto pair = (__m512bh)_mm512_set1_epi32(pair_at(a + r * a_row + i));
      sum[r][0] = _mm512_dpbf16_ps(sum[r][0], pair, low);
      sum[r][1] = _mm512_dpbf16_ps(sum[r][1], pair, high);
    }
  }
  if (k % 2 == 1) {  // the missing partner is 0 here and in the panel
    const auto low = (__m512bh)_mm512_loadu_si512(b), high = (__m512bh)_mm512_loadu_si512(b + kPanelColumns);
    for (int r = 0; r < kRows; ++r) {
      const auto last = (__m512bh)_mm512_set1_epi32(a[r * a_row + k - 1]);
      sum[r][0] = _mm512_dpbf16_ps(sum[r][0], last, low);
      sum[r][1] = _mm512_dpbf16_ps(sum[r][1], last, high);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < 2; ++v) _mm512_storeu_ps(sums + r * sums_row + v * 16, sum[r][v]);
}

template <std::size_t... kIndex>
constexpr PackedTiles f32_tiles(std::index_sequence<kIndex...>) {
  return {kMostTileRows, {&tile_f32<static_cast<int>(kIndex) + 1>...}, false};
}
template <std::size_t... kIndex>
constexpr PackedTiles bf16_tiles(std::index_sequence<kIndex...>) {
  return {kMostTileRows, {&tile_bf16<static_cast<int>(kIndex) + 1>...}, true};
}
constexpr PackedTiles kF32 = f32_tiles(std::make_index_sequence<kMostTileRows>());
constexpr PackedTiles kBf16 = bf16_tiles(std::make_index_sequence<kMostTileRows>());

}  // namespace

const PackedTiles* wide_packed_tiles(bool bf16) {
  if (bf16 && bf16_dot_pays()) return &kBf16;
  return isa() >= Isa::avx512 ? &kF32 : nullptr;
}

}  // namespace tapestry::kernels::cpu

#else

namespace tapestry::kernels::cpu {
const PackedTiles* wide_packed_tiles(bool) { return nullptr; }
}  // namespace tapestry::kernels::cpu

#endif
