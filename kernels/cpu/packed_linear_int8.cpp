// Products of x, rounded to int8 in blocks of 32, with weights of 2 to 8 bits (llama.cpp's Q8_1 and its
// vec_dot functions). The weights of 16 rows lie side by side, so that sums over columns need no horizontal
// additions, and one load of the weights serves up to 8 rows of x.
#include "tapestry/kernels/cpu/packed_linear_int8.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#if defined(__x86_64__)
#if defined(__GNUC__) && !defined(__clang__)
// g++ 12 takes the undefined vectors in its own AVX-512 header for mistakes (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#endif

#include "tapestry/kernels/cpu/compute.h"
#include "tapestry/kernels/cpu/isa.h"
#include "tapestry/kernels/ops/packed_linear.h"

namespace tapestry::kernels::cpu {
namespace {

// ---- x ----

// Some rows of x. Block b of row i has the integers q[i q_row + 32 b] and on, and the scale d[i d_row + b].
// Group g has s[i group_row + g] = d * (sum of its integers), and its sum begins with start[i group_row + g]:
// its integers times -offset.
struct Int8Rows {
  std::int64_t q_row, d_row, group_row;
  const std::int8_t* q;
  const float *d, *s;
  const std::int32_t* start;
};

// Rounds a block to integers q and returns its scale. Writes the sums of the two halves of q to `sums`. Eight
// lanes are independent, so that the compiler uses vectors.
float round_block(const float* x, std::int8_t* q, std::int32_t* sums) {
  constexpr int kLanes = 8;
  float largest[kLanes] = {}, bad[kLanes] = {};
  for (int i = 0; i < 32; i += kLanes)
    for (int j = 0; j < kLanes; ++j) {
      const float size = std::fabs(x[i + j]);
      largest[j] = size > largest[j] ? size : largest[j];
      bad[j] += x[i + j] * 0.0f;  // NaN if x is not finite
    }
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int j = 0; j < half; ++j) {
      largest[j] = largest[j + half] > largest[j] ? largest[j + half] : largest[j];
      bad[j] += bad[j + half];
    }
  const float d = largest[0] / 127, inverse = 1 / d;
  if (bad[0] != 0 || !std::isfinite(inverse)) {  // also 0 and numbers below 1e-36
    std::memset(q, 0, 32);
    sums[0] = sums[1] = 0;
    return bad[0] != 0 ? std::numeric_limits<float>::quiet_NaN() : 0.0f;
  }
  for (int h = 0; h < 2; ++h) {
    std::int32_t integers[16], lanes[kLanes] = {};
    for (int i = 0; i < 16; ++i)
      integers[i] = static_cast<std::int32_t>(std::nearbyint(x[16 * h + i] * inverse));
    for (int i = 0; i < 16; ++i) q[16 * h + i] = static_cast<std::int8_t>(integers[i]);
    for (int j = 0; j < kLanes; ++j) lanes[j] = integers[j] + integers[j + kLanes];
    sums[h] =
        ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
  }
  return d;
}

using RoundBlock = float (*)(const float* x, std::int8_t* q, std::int32_t* sums);

// Rounds one row. `group` is 16 or 32, and `offset` is that of an unsigned weight.
void round_row(RoundBlock round, const float* x, std::int64_t k, std::int64_t group, int offset,
               std::int8_t* q, float* d, float* s, std::int32_t* start) {
  for (std::int64_t b = 0; b < k / 32; ++b) {
    std::int32_t sums[2];
    d[b] = round(x + 32 * b, q + 32 * b, sums);
    const std::int64_t parts = 32 / group;
    if (parts == 1) sums[0] += sums[1];
    for (std::int64_t i = 0; i < parts; ++i) {
      start[parts * b + i] = -offset * sums[i];
      s[parts * b + i] = d[b] * static_cast<float>(sums[i]);
    }
  }
}

// ---- one panel ----

// Where a tile writes: rows of y that begin y_row apart, `columns` of each, plus the bias unless it is null.
struct TileResult {
  float* y;
  std::int64_t y_row;
  const float* bias;
  std::int64_t columns;
};

using Tile = void (*)(const std::uint8_t* panel, std::int64_t k, const Int8Rows& x, const TileResult& to);

float half_at(const std::uint8_t* at) {
  Half half;
  std::memcpy(&half.bits, at, 2);
  return static_cast<float>(half);
}

// The scale of row j in a group, and what is added for each unit of x.
template <BlockType type>
void scales_of(const std::uint8_t* head, const std::uint8_t* scales, std::int64_t j, float& scale,
               float& minimum) {
  using Layout = PanelLayout<type>;
  if constexpr (Layout::kIsK && Layout::kHasMinimum) {
    scale = half_at(head + 2 * j) * static_cast<float>(scales[j]);
    minimum = -(half_at(head + 32 + 2 * j) * static_cast<float>(scales[16 + j]));
  } else if constexpr (Layout::kIsK) {
    scale = half_at(head + 2 * j) * static_cast<float>(static_cast<std::int8_t>(scales[j]));
  } else {
    scale = half_at(scales + 2 * j);
    if constexpr (Layout::kHasMinimum) minimum = half_at(scales + 32 + 2 * j);
  }
}

template <BlockType type>
void portable_tile(const std::uint8_t* p, std::int64_t k, const Int8Rows& x, const TileResult& to) {
  using Layout = PanelLayout<type>;
  constexpr std::int64_t kGroup = Layout::kGroup, kRows = kPanelRows;
  float sum[kRows] = {};
  for (std::int64_t at = 0; at < k;) {
    const std::uint8_t* const head = p;
    p += Layout::kHead;
    for (std::int64_t end = at + Layout::kSuper; at < end; at += kGroup) {
      const std::uint8_t *const scales = p, *const data = p + Layout::kScales;
      std::int32_t dot[kRows];
      std::fill_n(dot, kRows, x.start[at / kGroup]);
      const std::int8_t* const q = x.q + at;
      if constexpr (Layout::kIs4) {
        for (std::int64_t c = 0; c < kGroup / 8; ++c)
          for (std::int64_t j = 0; j < kRows; ++j)
            for (std::int64_t i = 0; i < 4; ++i) {
              const int w = data[64 * c + 4 * j + i];
              dot[j] += (w & 15) * q[4 * c + i] + (w >> 4) * q[kGroup / 2 + 4 * c + i];
            }
      } else {
        for (std::int64_t c = 0; c < kGroup / 4; ++c)
          for (std::int64_t j = 0; j < kRows; ++j)
            for (std::int64_t i = 0; i < 4; ++i) {
              const std::uint8_t w = data[64 * c + 4 * j + i];
              dot[j] += (type == BlockType::q8_0 ? static_cast<std::int8_t>(w) : w) * q[4 * c + i];
            }
      }
      for (std::int64_t j = 0; j < kRows; ++j) {
        float scale = 0, minimum = 0;
        scales_of<type>(head, scales, j, scale, minimum);
        sum[j] += static_cast<float>(dot[j]) * (scale * x.d[at / 32]);
        if constexpr (Layout::kHasMinimum) sum[j] += minimum * x.s[at / kGroup];
      }
      p = data + Layout::kData;
    }
  }
  for (std::int64_t j = 0; j < to.columns; ++j) to.y[j] = to.bias ? sum[j] + to.bias[j] : sum[j];
}

#if defined(__x86_64__)

#define TAPESTRY_AVX2 __attribute__((target("avx2,fma,f16c")))
#define TAPESTRY_VNNI __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")))

// round_block() with the same results, bit for bit: g++ leaves the rounding there to scalar instructions.
TAPESTRY_AVX2 float round_block_avx2(const float* x, std::int8_t* q, std::int32_t* sums) {
  const __m256 sign = _mm256_set1_ps(-0.0f), zero = _mm256_setzero_ps();
  __m256 part[4], largest = zero, bad = zero;
  for (int i = 0; i < 4; ++i) {
    part[i] = _mm256_loadu_ps(x + 8 * i);
    largest = _mm256_max_ps(largest, _mm256_andnot_ps(sign, part[i]));
    bad = _mm256_fmadd_ps(part[i], zero, bad);  // NaN if x is not finite
  }
  __m128 most = _mm_max_ps(_mm256_castps256_ps128(largest), _mm256_extractf128_ps(largest, 1));
  most = _mm_max_ps(most, _mm_movehl_ps(most, most));
  most = _mm_max_ss(most, _mm_movehdup_ps(most));
  const bool is_bad = _mm256_movemask_ps(_mm256_cmp_ps(bad, bad, _CMP_UNORD_Q)) != 0;
  const float d = _mm_cvtss_f32(most) / 127, inverse = 1 / d;
  if (is_bad || !std::isfinite(inverse)) {
    std::memset(q, 0, 32);
    sums[0] = sums[1] = 0;
    return is_bad ? std::numeric_limits<float>::quiet_NaN() : 0.0f;
  }
  const __m256 factor = _mm256_set1_ps(inverse);
  __m256i integers[4];
  for (int i = 0; i < 4; ++i) integers[i] = _mm256_cvtps_epi32(_mm256_mul_ps(part[i], factor));
  const __m256i pairs = _mm256_hadd_epi32(_mm256_add_epi32(integers[0], integers[1]),
                                          _mm256_add_epi32(integers[2], integers[3]));
  const __m128i both = _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
  const __m128i two = _mm_hadd_epi32(both, both);
  sums[0] = _mm_cvtsi128_si32(two);
  sums[1] = _mm_extract_epi32(two, 1);
  // AVX2 packs each half of 128 bits by itself. So the four inputs are interleaved in groups of 4 bytes, and
  // the permutation restores their order.
  const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(integers[0], integers[1]),
                                           _mm256_packs_epi32(integers[2], integers[3]));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(q),
                      _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
  return d;
}

// Scales of the rows 8 h to 8 h + 7.
template <BlockType type>
TAPESTRY_AVX2 inline void load_scales(const std::uint8_t* head, const std::uint8_t* scales, int h,
                                      __m256& scale, __m256& minimum) {
  const auto halves = [](const std::uint8_t* at) { return reinterpret_cast<const __m128i*>(at); };
  const auto bytes = halves;
  using Layout = PanelLayout<type>;
  if constexpr (Layout::kIsK && Layout::kHasMinimum) {
    scale = _mm256_mul_ps(_mm256_cvtph_ps(_mm_loadu_si128(halves(head + 16 * h))),
                          _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(bytes(scales + 8 * h)))));
    const __m256 size =
        _mm256_mul_ps(_mm256_cvtph_ps(_mm_loadu_si128(halves(head + 32 + 16 * h))),
                      _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(bytes(scales + 16 + 8 * h)))));
    minimum = _mm256_sub_ps(_mm256_setzero_ps(), size);
  } else if constexpr (Layout::kIsK) {
    scale = _mm256_mul_ps(_mm256_cvtph_ps(_mm_loadu_si128(halves(head + 16 * h))),
                          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(bytes(scales + 8 * h)))));
  } else {
    scale = _mm256_cvtph_ps(_mm_loadu_si128(halves(scales + 16 * h)));
    if constexpr (Layout::kHasMinimum)
      minimum = _mm256_cvtph_ps(_mm_loadu_si128(halves(scales + 32 + 16 * h)));
  }
}

// sum += the products of 4 unsigned (or, for Q8_0, signed) bytes of 8 rows with 4 signed ones. The sums of
// two products fit in 16 bits, because a factor has at most 127, and the other 128 or less.
template <BlockType type>
TAPESTRY_AVX2 inline void add_products(__m256i& sum, const __m256i& w, const std::int8_t* q) {
  std::int32_t four;
  std::memcpy(&four, q, 4);
  const __m256i x = _mm256_set1_epi32(four);
  const __m256i pairs = type == BlockType::q8_0
                            ? _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w))
                            : _mm256_maddubs_epi16(w, x);
  sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

template <BlockType type, int rows>
TAPESTRY_AVX2 void avx2_tile(const std::uint8_t* panel, std::int64_t k, const Int8Rows& x,
                             const TileResult& to) {
  using Layout = PanelLayout<type>;
  constexpr std::int64_t kGroup = Layout::kGroup;
  const __m256i low_half = _mm256_set1_epi8(15);
  for (int h = 0; h < 2; ++h) {
    if (8 * h >= to.columns) break;
    const std::uint8_t* p = panel;
    __m256 sum[rows];
    for (int r = 0; r < rows; ++r) sum[r] = _mm256_setzero_ps();
    for (std::int64_t at = 0; at < k;) {
      const std::uint8_t* const head = p;
      p += Layout::kHead;
      for (std::int64_t end = at + Layout::kSuper; at < end; at += kGroup) {
        const std::uint8_t *const scales = p, *const data = p + Layout::kScales + 32 * h;
        __m256i dot[rows];
        for (int r = 0; r < rows; ++r) dot[r] = _mm256_set1_epi32(x.start[r * x.group_row + at / kGroup]);
        for (std::int64_t c = 0; c < Layout::kData / 64; ++c) {
          const __m256i w = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data + 64 * c));
          if constexpr (Layout::kIs4) {
            const __m256i low = _mm256_and_si256(w, low_half),
                          high = _mm256_and_si256(_mm256_srli_epi16(w, 4), low_half);
            for (int r = 0; r < rows; ++r) {
              add_products<type>(dot[r], low, x.q + r * x.q_row + at + 4 * c);
              add_products<type>(dot[r], high, x.q + r * x.q_row + at + kGroup / 2 + 4 * c);
            }
          } else {
            for (int r = 0; r < rows; ++r) add_products<type>(dot[r], w, x.q + r * x.q_row + at + 4 * c);
          }
        }
        __m256 scale, minimum = _mm256_setzero_ps();
        load_scales<type>(head, scales, h, scale, minimum);
        for (int r = 0; r < rows; ++r) {
          const __m256 d = _mm256_set1_ps(x.d[r * x.d_row + at / 32]);
          sum[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[r]), _mm256_mul_ps(scale, d), sum[r]);
          if constexpr (Layout::kHasMinimum)
            sum[r] = _mm256_fmadd_ps(minimum, _mm256_set1_ps(x.s[r * x.group_row + at / kGroup]), sum[r]);
        }
        p += Layout::kScales + Layout::kData;
      }
    }
    const std::int64_t columns = std::min<std::int64_t>(8, to.columns - 8 * h);
    for (int r = 0; r < rows; ++r) {
      float line[8];
      _mm256_storeu_ps(line, sum[r]);
      float* const y = to.y + r * to.y_row + 8 * h;
      for (std::int64_t j = 0; j < columns; ++j) y[j] = to.bias ? line[j] + to.bias[8 * h + j] : line[j];
    }
  }
}

template <BlockType type, int rows>
TAPESTRY_VNNI void vnni_tile(const std::uint8_t* p, std::int64_t k, const Int8Rows& x, const TileResult& to) {
  using Layout = PanelLayout<type>;
  constexpr std::int64_t kGroup = Layout::kGroup;
  const __m512i low_half = _mm512_set1_epi8(15);
  [[maybe_unused]] const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
  __m512 sum[rows];
  for (int r = 0; r < rows; ++r) sum[r] = _mm512_setzero_ps();
  const auto four = [&x](int r, std::int64_t at) __attribute__((always_inline)) {
    std::int32_t bytes;
    std::memcpy(&bytes, x.q + r * x.q_row + at, 4);
    return bytes;
  };
  for (std::int64_t at = 0; at < k;) {
    const std::uint8_t* const head = p;
    p += Layout::kHead;
    for (std::int64_t end = at + Layout::kSuper; at < end; at += kGroup) {
      const std::uint8_t *const scales = p, *const data = p + Layout::kScales;
      __m512i dot[rows];
      for (int r = 0; r < rows; ++r) dot[r] = _mm512_set1_epi32(x.start[r * x.group_row + at / kGroup]);
#pragma GCC unroll 8
      for (std::int64_t c = 0; c < Layout::kData / 64; ++c) {
        __m512i w = _mm512_loadu_si512(data + 64 * c);
        if constexpr (Layout::kIs4) {
          const __m512i high = _mm512_and_si512(_mm512_srli_epi16(w, 4), low_half);
          w = _mm512_and_si512(w, low_half);
#pragma GCC unroll 8
          for (int r = 0; r < rows; ++r) {
            dot[r] = _mm512_dpbusd_epi32(dot[r], w, _mm512_set1_epi32(four(r, at + 4 * c)));
            dot[r] = _mm512_dpbusd_epi32(dot[r], high, _mm512_set1_epi32(four(r, at + kGroup / 2 + 4 * c)));
          }
        } else {
          // w + 128 is unsigned; the sums begin with -128 times those of x.
          if constexpr (type == BlockType::q8_0) w = _mm512_xor_si512(w, sign);
#pragma GCC unroll 8
          for (int r = 0; r < rows; ++r)
            dot[r] = _mm512_dpbusd_epi32(dot[r], w, _mm512_set1_epi32(four(r, at + 4 * c)));
        }
      }
      __m512 scale, minimum = _mm512_setzero_ps();
      const auto* const vectors = reinterpret_cast<const __m256i*>(scales);
      if constexpr (Layout::kIsK) {
        const __m512 d = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(head)));
        const __m128i small = _mm_loadu_si128(reinterpret_cast<const __m128i*>(scales));
        if constexpr (Layout::kHasMinimum) {
          scale = _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(small)));
          const __m512 m = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(head + 32)));
          const __m128i minima = _mm_loadu_si128(reinterpret_cast<const __m128i*>(scales + 16));
          minimum =
              _mm512_sub_ps(minimum, _mm512_mul_ps(m, _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(minima))));
        } else {
          scale = _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(small)));
        }
      } else {
        scale = _mm512_cvtph_ps(_mm256_loadu_si256(vectors));
        if constexpr (Layout::kHasMinimum) minimum = _mm512_cvtph_ps(_mm256_loadu_si256(vectors + 1));
      }
#pragma GCC unroll 8
      for (int r = 0; r < rows; ++r) {
        const __m512 d = _mm512_set1_ps(x.d[r * x.d_row + at / 32]);
        sum[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[r]), _mm512_mul_ps(scale, d), sum[r]);
        if constexpr (Layout::kHasMinimum)
          sum[r] = _mm512_fmadd_ps(minimum, _mm512_set1_ps(x.s[r * x.group_row + at / kGroup]), sum[r]);
      }
      p = data + Layout::kData;
    }
  }
  const auto mask = static_cast<__mmask16>((1u << to.columns) - 1);
  for (int r = 0; r < rows; ++r) {
    if (to.bias) sum[r] = _mm512_add_ps(sum[r], _mm512_maskz_loadu_ps(mask, to.bias));
    _mm512_mask_storeu_ps(to.y + r * to.y_row, mask, sum[r]);
  }
}
#endif

// ---- the choice of a kernel ----

std::optional<Int8Kernel> chosen;

// The tiles of one kernel: of 1, 2, 4 and 8 rows, or null.
struct Tiles {
  Tile of[4] = {};
  int offset = 0;  // of the weights as the tiles read them
  RoundBlock round = &round_block;
};
template <BlockType type>
Tiles tiles_of(Int8Kernel kernel) {
  constexpr int kOffset = PanelLayout<type>::kOffset;
#if defined(__x86_64__)
  if (kernel == Int8Kernel::vnni) {
    // Each tile takes time to compile, so the rare types have only two.
    if constexpr (type == BlockType::q5_1 || type == BlockType::q5_k || type == BlockType::q2_k)
      return {{&vnni_tile<type, 1>, nullptr, nullptr, &vnni_tile<type, 8>}, kOffset, &round_block_avx2};
    else
      return {{&vnni_tile<type, 1>, &vnni_tile<type, 2>, &vnni_tile<type, 4>, &vnni_tile<type, 8>},
              type == BlockType::q8_0 ? 128 : kOffset,
              &round_block_avx2};
  }
  if (kernel == Int8Kernel::avx2)
    return {{&avx2_tile<type, 1>, nullptr, &avx2_tile<type, 4>, nullptr}, kOffset, &round_block_avx2};
#endif
  return {{&portable_tile<type>, nullptr, nullptr, nullptr}, kOffset, &round_block};
}

// So many rows of x, as integers, stay in the L2 cache while all panels are multiplied by them.
constexpr std::int64_t kRowBytes = 512 * 1024;

template <BlockType type>
void multiply(const LaunchContext& context, const PackedInt8Args& a) {
  using Layout = PanelLayout<type>;
  const std::int64_t n = a.weight.rows, k = a.weight.columns, blocks = k / 32, groups = k / Layout::kGroup;
  const std::int64_t panels = (n + kPanelRows - 1) / kPanelRows;
  const std::int64_t panel = k / Layout::kSuper * Layout::kBytes;
  const Tiles tiles = tiles_of<type>(chosen.value_or(best_int8_kernel()));
  const float *const x = a.x.as<float>(), *const bias = a.bias.as<float>();
  float* const y = a.y.as<float>();
  const std::uint8_t* const weights = a.panels.as<std::uint8_t>();
  const std::int64_t most =
      std::clamp<std::int64_t>(kRowBytes / std::max<std::int64_t>(k, 1) / 8 * 8, 8, a.m + 8);
  const std::int64_t height = std::min(most, a.m);
  const Scratch<float> numbers(context.device, height * (blocks + groups));
  const Scratch<std::int32_t> starts(context.device, height * groups);
  const Scratch<std::int8_t> integers(context.device, height * k);
  for (std::int64_t first = 0; first < a.m; first += height) {
    const std::int64_t rows = std::min(height, a.m - first);
    float *const d = numbers.data(), *const s = d + height * blocks;
    parallel_for(rows, grain_of(4 * k), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i)
        round_row(tiles.round, x + (first + i) * k, k, Layout::kGroup, tiles.offset, integers.data() + i * k,
                  d + i * blocks, s + i * groups, starts.data() + i * groups);
    });
    const std::int64_t grain =
        std::max<std::int64_t>(65536 / (kPanelRows * std::max<std::int64_t>(k, 1) * rows), 1);
    parallel_for(panels, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t p = begin; p < end; ++p) {
        const std::int64_t column = p * kPanelRows;
        TileResult to{y + first * n + column, n, bias ? bias + column : nullptr,
                      std::min(kPanelRows, n - column)};
        Int8Rows in{k, blocks, groups, integers.data(), d, s, starts.data()};
        for (std::int64_t left = rows; left > 0;) {
          int size = 3;
          while ((std::int64_t{1} << size) > left || !tiles.of[size]) --size;
          const std::int64_t taken = std::int64_t{1} << size;
          tiles.of[size](weights + p * panel, k, in, to);
          left -= taken;
          in.q += taken * k, in.d += taken * blocks, in.s += taken * groups, in.start += taken * groups;
          to.y += taken * n;
        }
      }
    });
  }
}

void packed_linear_int8_kernel(const LaunchContext& context, const PackedInt8Args& a) {
  if (a.m == 0 || a.weight.rows == 0) return;
  for_int8_type(a.weight.type, [&]<BlockType type> { multiply<type>(context, a); });
}

// ---- panels ----

// Writes the elements of 4 columns of row j of a group.
void put_chunk(std::uint8_t* data, std::int64_t c, std::int64_t j, const std::uint8_t* from) {
  std::memcpy(data + 64 * c + 4 * j, from, 4);
}

// Writes a block of a type with a decoder of integers as part of row j of a panel of the form `form`.
template <BlockType form>
void put_parts(BlockType type, const std::uint8_t* block, std::int64_t j, std::uint8_t* to) {
  using Layout = PanelLayout<form>;
  const tapestry::detail::BlockParts p = tapestry::detail::block_parts(type, block);
  std::uint8_t* group = to + Layout::kHead;
  // Of types of 32 elements, d and m are the scales of the only group.
  std::memcpy(to + 2 * j, &p.d, 2);
  if constexpr (Layout::kHasMinimum) std::memcpy(to + 32 + 2 * j, &p.m, 2);
  for (std::int64_t g = 0; g < Layout::kSuper / Layout::kGroup;
       ++g, group += Layout::kScales + Layout::kData) {
    if constexpr (Layout::kIsK) {
      group[j] = static_cast<std::uint8_t>(p.scales[g]);
      if constexpr (Layout::kHasMinimum) group[16 + j] = p.minima[g];
    }
    constexpr std::int64_t kBytes = Layout::kIs4 ? Layout::kGroup / 2 : Layout::kGroup;
    std::uint8_t elements[kBytes];
    const std::int8_t* const q = p.q + g * Layout::kGroup;
    // Signed ones get the offset of the form.
    const int offset = type == BlockType::q3_k ? Layout::kOffset : 0;
    for (std::int64_t i = 0; i < kBytes; ++i)
      elements[i] = static_cast<std::uint8_t>(Layout::kIs4 ? q[i] | q[kBytes + i] << 4 : q[i] + offset);
    for (std::int64_t c = 0; c < kBytes / 4; ++c) put_chunk(group + Layout::kScales, c, j, elements + 4 * c);
  }
}

// Writes part `part` of row j of a panel.
template <BlockType type>
void put_block(const std::uint8_t* block, std::int64_t j, std::uint8_t* to) {
  using Layout = PanelLayout<type>;
  if constexpr (type == BlockType::q4_0 || type == BlockType::q4_1) {
    std::memcpy(to + 2 * j, block, 2);
    if constexpr (type == BlockType::q4_1) std::memcpy(to + 32 + 2 * j, block + 2, 2);
    const std::uint8_t* const qs = block + (type == BlockType::q4_1 ? 4 : 2);
    for (std::int64_t c = 0; c < 4; ++c) put_chunk(to + Layout::kScales, c, j, qs + 4 * c);
  } else if constexpr (type == BlockType::q8_0) {
    std::memcpy(to + 2 * j, block, 2);
    for (std::int64_t c = 0; c < 8; ++c) put_chunk(to + Layout::kScales, c, j, block + 2 + 4 * c);
  } else if constexpr (type == BlockType::q4_k) {
    std::memcpy(to + 2 * j, block, 2);
    std::memcpy(to + 32 + 2 * j, block + 2, 2);
    const std::uint8_t *const scales = block + 4, *const qs = block + 16;
    std::uint8_t* group = to + Layout::kHead;
    for (int g = 0; g < 8; ++g, group += Layout::kScales + Layout::kData) {
      const int sc = g < 4 ? scales[g] & 63 : (scales[g + 4] & 15) | (scales[g - 4] >> 6) << 4;
      const int mn = g < 4 ? scales[g + 4] & 63 : scales[g + 4] >> 4 | (scales[g] >> 6) << 4;
      group[j] = static_cast<std::uint8_t>(sc);
      group[16 + j] = static_cast<std::uint8_t>(mn);
      const std::uint8_t* const q = qs + g / 2 * 32;
      const int shift = g % 2 * 4;
      std::uint8_t pairs[16];
      for (int i = 0; i < 16; ++i)
        pairs[i] = static_cast<std::uint8_t>((q[i] >> shift & 15) | (q[16 + i] >> shift & 15) << 4);
      for (std::int64_t c = 0; c < 4; ++c) put_chunk(group + Layout::kScales, c, j, pairs + 4 * c);
    }
  } else if constexpr (type == BlockType::q6_k) {
    const std::uint8_t *const ql = block, *const qh = block + 128, *const scales = block + 192;
    std::memcpy(to + 2 * j, block + 208, 2);
    std::uint8_t* group = to + Layout::kHead;
    for (int g = 0; g < 16; ++g, group += Layout::kScales + Layout::kData) {
      group[j] = scales[g];
      std::uint8_t elements[16];
      for (int e = 0; e < 16; ++e) {
        const int i = (16 * g + e) % 128, half = g / 8;
        const int low = ql[64 * half + i % 64] >> (i < 64 ? 0 : 4) & 15;
        const int high = qh[32 * half + i % 32] >> (i / 32 * 2) & 3;
        elements[e] = static_cast<std::uint8_t>(low | high << 4);
      }
      for (std::int64_t c = 0; c < 4; ++c) put_chunk(group + Layout::kScales, c, j, elements + 4 * c);
    }
  }
}

template <BlockType form>
void write_panels(const InterleaveArgs& a) {
  using Layout = PanelLayout<form>;
  const PackedMatrix& w = a.weight;
  const std::int64_t parts = w.columns / Layout::kSuper, bytes = block_layout(w.type).bytes;
  constexpr bool kOnlyParts = form == BlockType::q5_1 || form == BlockType::q2_k || form == BlockType::q5_k;
  constexpr bool kMayBeParts =
      kOnlyParts || form == BlockType::q8_0 || form == BlockType::q6_k;  // panel_form()
  std::uint8_t* const panels = a.panels.as<std::uint8_t>();
  parallel_for((w.rows + kPanelRows - 1) / kPanelRows, grain_of(kPanelRows * w.columns),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t p = begin; p < end; ++p) {
                   std::uint8_t* const to = panels + p * parts * Layout::kBytes;
                   const std::int64_t rows = std::min(kPanelRows, w.rows - p * kPanelRows);
                   if (rows < kPanelRows) std::fill_n(to, parts * Layout::kBytes, std::uint8_t{0});
                   for (std::int64_t part = 0; part < parts; ++part)
                     for (std::int64_t j = 0; j < rows; ++j) {
                       const std::uint8_t* const block =
                           w.blocks + ((p * kPanelRows + j) * parts + part) * bytes;
                       std::uint8_t* const at = to + part * Layout::kBytes;
                       if constexpr (kMayBeParts)
                         if (kOnlyParts || w.type != form) {
                           put_parts<form>(w.type, block, j, at);
                           continue;
                         }
                       if constexpr (!kOnlyParts) put_block<form>(block, j, at);
                     }
                 }
               });
}

void interleave_kernel(const LaunchContext&, const InterleaveArgs& a) {
  for_int8_type(a.weight.type, [&]<BlockType form> { write_panels<form>(a); });
}

[[maybe_unused]] const bool filled = [] {
  interleave.set(DeviceType::cpu, DType::u8, &interleave_kernel);
  packed_linear_int8.set(DeviceType::cpu, DType::f32, &packed_linear_int8_kernel);
  return true;
}();

}  // namespace

Int8Kernel best_int8_kernel() {
  return isa() >= Isa::avx512_vnni ? Int8Kernel::vnni
         : isa() >= Isa::avx2      ? Int8Kernel::avx2
                                   : Int8Kernel::portable;
}

void set_int8_kernel(std::optional<Int8Kernel> kernel) { chosen = kernel; }

}  // namespace tapestry::kernels::cpu
