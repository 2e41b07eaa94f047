#pragma once
// What the forward and the backward kernels of attention share: tiles of rows in shared memory, products of
// tiles, and what happens to scores between the products.
//
// Each warp owns 16 rows, or kSets times 16, of the block's own tile, for instance queries. Tiles of other
// rows, for instance keys, pass by. Scores and sums are accumulators of mma.m16n8k16: in the set s, lane l
// holds columns 8 j + 2 (l % 4) + {0, 1} of row 16 s + l / 4 in x[s][j][0..1], and of the row 8 below in
// x[s][j][2..3]. f32 has the same layout, with multiply-adds in place of mma. A product of scores with a
// tile takes the scores from registers: the accumulators of two neighbours j are a fragment of mma's left
// operand (Dao 2023). f32 passes them through shared memory that belongs to the warp.
#include <algorithm>
#include <cstdint>
#include <limits>

#include "tapestry/core/error.h"
#include "tapestry/core/internal/capture_state.h"
#include "tapestry/core/internal/captured_range.h"
#include "tapestry/core/philox.h"
#include "tapestry/kernels/cuda/launch_context.cuh"
#include "tapestry/kernels/cuda/mma.cuh"
#include "tapestry/kernels/ops/attention.h"

namespace tapestry::kernels::cuda {

inline constexpr float kNoScore = -std::numeric_limits<float>::infinity();
inline constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;

/// A tile has rows of kWidth elements in chunks of 16 bytes. A chunk's place is the XOR of its index and the
/// row, so that a column of chunks in 8 rows lies in different banks. Where rows are an odd multiple of 64
/// bytes, two rows share the 128 bytes of all banks, and the XOR permutes 4 chunks instead of 8.
template <class T>
inline constexpr int kChunkOf = 16 / static_cast<int>(sizeof(T));
template <class T, int kWidth>
inline constexpr bool kWholeLines = kWidth / kChunkOf<T> % 8 == 0;
template <class T, int kWidth>
__device__ __forceinline__ int tile_at(int row, int column) {
  static_assert(kWidth / kChunkOf<T> % 4 == 0);
  const int flipped = kWholeLines<T, kWidth> ? row & 7 : row >> 1 & 3;
  // Bit operations, because division and remainder of signed numbers take more instructions.
  return row * kWidth + (((column / kChunkOf<T>)^flipped) * kChunkOf<T> | (column & (kChunkOf<T> - 1)));
}
/// The place in the same row that is `columns`, a multiple of 16, behind a place in the first 16 columns, for
/// elements of 16 bits. Such a move flips bits of the chunk's index, before or after the XOR with the row.
/// Rows of 96 elements do not begin at multiples of a power of 2, so there the bits above the permuted ones
/// are added.
template <class T, int kWidth>
__device__ __forceinline__ int tile_behind(int place, int columns) {
  static_assert(sizeof(T) == 2);
  if constexpr (kWholeLines<T, kWidth>) return place ^ columns;
  else return (place ^ (columns & 31)) + (columns & ~31);
}

/// The rows of one array. packs: all rows begin at multiples of 16 bytes and have whole chunks.
template <class T>
struct HeadRows {
  T* data;
  std::int64_t batch, head, row;
  int columns;
  bool packs;
  __device__ __forceinline__ T* of(int b, int h) const { return data + b * batch + h * head; }
};
template <class T>
HeadRows<T> head_rows(T* data, const AttentionStrides& s, std::int64_t columns) {
  const auto whole = [](std::int64_t n) { return n % kChunkOf<T> == 0; };
  return {
      data,
      s.batch,
      s.head,
      s.row,
      static_cast<int>(columns),
      aligned<std::uint32_t, 4>(data) && whole(s.batch) && whole(s.head) && whole(s.row) && whole(columns)};
}

/// Copies kRows rows of a head, from `first` on, to a tile. Missing rows and columns become 0. cp.async
/// copies whole chunks; the caller commits them.
template <int kRows, int kWidth, int kThreads, class T>
__device__ __forceinline__ void fetch_rows(T* tile, const HeadRows<const T>& rows, const T* head, int first,
                                           int count) {
  // The threads take kSpan columns of kStep rows at a time.
  constexpr int kSpan = kWidth == 96 ? 32 : kWidth, kChunks = kSpan / kChunkOf<T>, kStep = kThreads / kChunks;
  static_assert(kThreads % kChunks == 0 && kRows % kStep == 0 && kWidth % kSpan == 0);
  const int thread = static_cast<int>(threadIdx.x), column = thread % kChunks * kChunkOf<T>;
  const auto at = [&](int row) { return head + (first + row) * rows.row + column; };
  if (rows.packs) {
    const T* from = at(thread / kChunks);
    const std::int64_t step = kStep * rows.row;
#pragma unroll
    for (int i = 0; i < kRows / kStep; ++i, from += step) {
      const int row = thread / kChunks + i * kStep;
#pragma unroll
      for (int span = 0; span < kWidth; span += kSpan)
        ptx::cp_async16(tile + tile_at<T, kWidth>(row, column + span), from + span,
                        column + span < rows.columns && first + row < count);
    }
  } else {
#pragma unroll 1
    for (int row = thread / kChunks; row < kRows; row += kStep) {
#pragma unroll 1
      for (int span = 0; span < kWidth; span += kSpan) {
        T* const to = tile + tile_at<T, kWidth>(row, column + span);
#pragma unroll 1
        for (int e = 0; e < kChunkOf<T>; ++e)
          to[e] = first + row < count && column + span + e < rows.columns ? at(row)[span + e] : T();
      }
    }
  }
}

/// Writes the warp's first `count` rows of a tile to global memory. The warp has written them itself.
template <int kRows, int kWidth, class T>
__device__ __forceinline__ void store_rows(const T* tile, const HeadRows<T>& rows, T* to, int count) {
  constexpr int kChunks = kWidth / kChunkOf<T>;
  __syncwarp();
  for (int i = static_cast<int>(threadIdx.x) % 32; i < kRows * kChunks; i += 32) {
    const int row = i / kChunks, column = i % kChunks * kChunkOf<T>;
    if (row >= count || column >= rows.columns) continue;
    const auto pack = *reinterpret_cast<const Pack<T, kChunkOf<T>>*>(tile + tile_at<T, kWidth>(row, column));
    T* const at = to + row * rows.row + column;
    if (rows.packs) {
      *reinterpret_cast<Pack<T, kChunkOf<T>>*>(at) = pack;
    } else {
#pragma unroll
      for (int e = 0; e < kChunkOf<T>; ++e)
        if (column + e < rows.columns) at[e] = pack.v[e];
    }
  }
}
/// Rounds two neighbouring results of a lane into a tile.
template <class T, int kWidth>
__device__ __forceinline__ void put_pair(T* tile, int row, int column, float low, float high) {
  T* const to = tile + tile_at<T, kWidth>(row, column);
  if constexpr (std::is_same_v<T, float>) *reinterpret_cast<Pack<float, 2>*>(to) = {{low, high}};
  else *reinterpret_cast<std::uint32_t*>(to) = pair_of<T>(low, high);
}

/// The left operand of products: the warp's rows of a tile. kHeld: its fragments are read once and stay in
/// registers; otherwise each product reads them from the tile.
template <class T, int kWidth, int kSets, bool kHeld>
struct OwnRows {
  static constexpr int kSteps = std::is_same_v<T, float> ? 1 : kWidth / 16;
  const T* rows;
  std::uint32_t held[kHeld ? kSets : 1][kHeld ? kSteps : 1][4];

  __device__ __forceinline__ void read(int set, int step, std::uint32_t (&a)[4]) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    ptx::ldmatrix_x4(a, rows + tile_at<T, kWidth>(16 * set + lane % 16, 16 * step + lane / 16 * 8));
  }
  __device__ __forceinline__ void hold() {
    if constexpr (kHeld)
#pragma unroll
      for (int set = 0; set < kSets; ++set)
#pragma unroll
        for (int step = 0; step < kSteps; ++step) read(set, step, held[set][step]);
  }

  /// x = own rows times the transpose of a tile with 8 N rows.
  template <int N>
  __device__ __forceinline__ void times_transposed(const T* tile, float (&x)[kSets][N][4]) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int set = 0; set < kSets; ++set)
#pragma unroll
      for (int j = 0; j < N; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) x[set][j][i] = 0;
    if constexpr (std::is_same_v<T, float>) {
      static_assert(kSets == 1);
#pragma unroll 1
      for (int k = 0; k < kWidth; k += 4) {
        const auto four = [&](const T* from, int row) {
          return *reinterpret_cast<const Pack<float, 4>*>(from + tile_at<T, kWidth>(row, k));
        };
        const Pack<float, 4> low = four(rows, lane / 4), high = four(rows, lane / 4 + 8);
#pragma unroll
        for (int j = 0; j < N; ++j)
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const Pack<float, 4> other = four(tile, 8 * j + lane % 4 * 2 + i);
#pragma unroll
            for (int e = 0; e < 4; ++e) {
              x[0][j][i] += low.v[e] * other.v[e];
              x[0][j][2 + i] += high.v[e] * other.v[e];
            }
          }
      }
    } else {
      const int swizzled = tile_at<T, kWidth>(lane / 16 * 8 + lane % 8, lane / 8 % 2 * 8);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        std::uint32_t a[kSets][4];
#pragma unroll
        for (int set = 0; set < kSets; ++set) {
          if constexpr (kHeld)
#pragma unroll
            for (int i = 0; i < 4; ++i) a[set][i] = held[set][step][i];
          else read(set, step, a[set]);
        }
#pragma unroll
        for (int j = 0; j < N; j += 2) {
          std::uint32_t b[4];
          ptx::ldmatrix_x4(b, tile + (tile_behind<T, kWidth>(swizzled, 16 * step) + 8 * j * kWidth));
#pragma unroll
          for (int set = 0; set < kSets; ++set) {
            mma_m16n8k16<T>(x[set][j], a[set], {b[0], b[1]});
            mma_m16n8k16<T>(x[set][j + 1], a[set], {b[2], b[3]});
          }
        }
      }
    }
  }
};

/// Floats of shared memory per warp through which f32 passes scores. Rows are 4 longer than the columns, so
/// that 8 rows lie in different banks.
template <class T, int kColumns>
inline constexpr int kPassedFloats = std::is_same_v<T, float> ? 16 * (kColumns + 4) : 0;

/// sums += x times a tile with 8 N rows. For f32, `passed` is the warp's kPassedFloats.
template <class T, int kWidth, int kSets, int N>
__device__ __forceinline__ void add_product(const float (&x)[kSets][N][4], const T* tile,
                                            [[maybe_unused]] float* passed,
                                            float (&sums)[kSets][kWidth / 8][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if constexpr (std::is_same_v<T, float>) {
    constexpr int kPitch = 8 * N + 4;
    float* const own = passed + lane / 4 * kPitch;
    __syncwarp();  // all lanes have read what was passed before
#pragma unroll
    for (int j = 0; j < N; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        *reinterpret_cast<Pack<float, 2>*>(own + half * 8 * kPitch + 8 * j +
                                           lane % 4 * 2) = {{x[0][j][2 * half], x[0][j][2 * half + 1]}};
    __syncwarp();
#pragma unroll 1
    for (int row = 0; row < 8 * N; ++row) {
      const float low = own[row], high = own[8 * kPitch + row];
#pragma unroll
      for (int j = 0; j < kWidth / 8; ++j) {
        const auto two =
            *reinterpret_cast<const Pack<float, 2>*>(tile + tile_at<T, kWidth>(row, 8 * j + lane % 4 * 2));
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          sums[0][j][i] += low * two.v[i];
          sums[0][j][2 + i] += high * two.v[i];
        }
      }
    }
  } else {
    const int swizzled = tile_at<T, kWidth>(lane % 16, lane / 16 * 8);
#pragma unroll
    for (int j = 0; j < N; j += 2) {
      std::uint32_t a[kSets][4];
#pragma unroll
      for (int set = 0; set < kSets; ++set)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* const two = &x[set][j + i / 2][i % 2 * 2];
          a[set][i] = pair_of<T>(two[0], two[1]);
        }
#pragma unroll
      for (int c = 0; c < kWidth / 8; c += 2) {
        std::uint32_t b[4];
        ptx::ldmatrix_x4_trans(b, tile + (tile_behind<T, kWidth>(swizzled, 8 * c) + 8 * j * kWidth));
#pragma unroll
        for (int set = 0; set < kSets; ++set) {
          mma_m16n8k16<T>(sums[set][c], a[set], {b[0], b[1]});
          mma_m16n8k16<T>(sums[set][c + 1], a[set], {b[2], b[3]});
        }
      }
    }
  }
}

/// Calls f.operator()<W>() for the least width W of the kernels that holds heads of these widths.
template <class F>
void for_head_width(const AttentionShape& s, const F& f) {
  const std::int64_t width = std::max(s.width, s.value_width);
  if (width <= 32) f.template operator()<32>();
  else if (width <= 64) f.template operator()<64>();
  else if (width <= 96) f.template operator()<96>();
  else f.template operator()<128>();
}

/// Shape, mask and dropout, as kernels need them.
struct AttentionPlan {
  int batch, heads, groups, queries, keys, offset;  // a causal query sees keys 0 to query + offset
  bool causal, mask_is_bool;
  const void* mask;
  std::int64_t mask_batch, mask_head, mask_query, mask_key;
  // 2 to the power of score * exponent is the exponential. If `prepared`, scores are first multiplied by
  // `multiplier`, and the mask is added, in units of the exponent.
  bool prepared;
  float multiplier, exponent;
  PhiloxRange range;  // of dropout; see current_range()
  std::uint32_t threshold;
  float kept;  // the factor of weights that dropout keeps

  __device__ __forceinline__ bool hides(int query, int key) const {
    return key >= keys || (causal && key > query + offset);
  }
};
template <class T>
AttentionPlan attention_plan(const AttentionShape& s, double scale, const AttentionMask& m,
                             const AttentionDropout& d) {
  constexpr std::int64_t kMost = std::int64_t{1} << 29;
  check(s.queries < kMost && s.keys < kMost && s.batch < kMost && s.heads < kMost,
        "[scaled_dot_product_attention] ", s.batch, " batches, ", s.heads, " heads, ", s.queries,
        " queries and ", s.keys, " keys; the kernel takes fewer than 2^29 of each");
  check(s.width <= kMaxGpuAttentionWidth && s.value_width <= kMaxGpuAttentionWidth,
        "[scaled_dot_product_attention] widths ", s.width, " and ", s.value_width,
        "; the kernel takes at most ", kMaxGpuAttentionWidth);
  const auto narrow = [](std::int64_t n) { return static_cast<int>(n); };
  AttentionPlan p{};
  p.batch = narrow(s.batch), p.heads = narrow(s.heads), p.groups = narrow(s.groups);
  p.queries = narrow(s.queries), p.keys = narrow(s.keys);
  p.causal = m.causal, p.offset = narrow(std::min(m.offset, s.keys));
  if (m.mask) {
    if (m.mask.dtype() != DType::boolean)
      (void)m.mask.as<T>();  // throws unless the mask has the slot's dtype
    p.mask = m.mask.address(), p.mask_is_bool = m.mask.dtype() == DType::boolean;
    p.mask_batch = m.batch, p.mask_head = m.head, p.mask_query = m.query, p.mask_key = m.key;
  }
  // The maximum of the scores can be found before they are scaled only if the scale is positive.
  p.prepared = (m.mask && !p.mask_is_bool) || !(scale > 0);
  p.multiplier = static_cast<float>(scale * 1.4426950408889634);
  p.exponent = p.prepared ? 1 : p.multiplier;
  if (d.threshold) tapestry::detail::check_range("scaled_dot_product_attention", d.range);
  p.range = d.range, p.threshold = d.threshold;
  p.kept = static_cast<float>(d.threshold ? d.scale : 1);
  return p;
}

template <class T>
__device__ __forceinline__ float power_of_2(float x) {
  if constexpr (std::is_same_v<T, float>) return exp2f(x);
  else return ptx::exp2_approx(x);
}

/// Asks f(query, key) about each of a lane's scores x[N][4] (see the top of this file), and returns the
/// answers as bits: bit 4 j + i is that of x[j][i]. mask_scores() hides scores by it. Rows are
/// queries and columns keys, or the other way round if kKeyRows; x[0][0] has the row `row` and the column
/// `column`. The answers are bits so that the loop need not be unrolled. An array in registers would force it
/// to be, and its code would be many times longer than the rest of the kernel.
template <bool kKeyRows, int N, class F>
__device__ __forceinline__ std::uint32_t bits_of(int row, int column, F f) {
  static_assert(N <= 8);
  std::uint32_t bits = 0;
#pragma unroll 1
  for (int j = 0; j < 2 * N; ++j) {
    const int r = row + j % 2 * 8, c = column + j / 2 * 8;
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (kKeyRows ? f(c + i, r) : f(r, c + i)) bits |= 1u << (2 * j + i);
  }
  return bits;
}

/// Applies the mask to the scores of a set, placed as in bits_of(). edge: some of these keys may be hidden
/// from some of these queries, or missing.
template <class T, bool kKeyRows, int N>
__device__ __forceinline__ void mask_scores(const AttentionPlan& p, int batch, int head, int row, int column,
                                            bool edge, float (&x)[N][4]) {
  const std::int64_t first = batch * p.mask_batch + head * p.mask_head;
  if (p.prepared) {
    const bool adds = p.mask && !p.mask_is_bool;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = row + half * 8;
      const T* const from =
          static_cast<const T*>(p.mask) + first + r * (kKeyRows ? p.mask_key : p.mask_query);
      const bool has_row = adds && r < (kKeyRows ? p.keys : p.queries);
#pragma unroll
      for (int j = 0; j < N; ++j)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int c = column + 8 * j + i;
          float& score = x[j][2 * half + i];
          score *= p.multiplier;
          if (has_row && c < (kKeyRows ? p.queries : p.keys))
            score += load(from[c * (kKeyRows ? p.mask_query : p.mask_key)]) * kLog2E;
        }
    }
  }
  if (!edge && !p.mask_is_bool) return;
  const std::uint32_t seen = bits_of<kKeyRows, N>(row, column, [&](int query, int key) {
    if (query >= p.queries || p.hides(query, key)) return false;
    return !p.mask_is_bool ||
           static_cast<const bool*>(p.mask)[first + query * p.mask_query + key * p.mask_key];
  });
#pragma unroll
  for (int j = 0; j < N; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) x[j][i] = seen >> (4 * j + i) & 1 ? x[j][i] : kNoScore;
}

/// The kernels' static shared memory, `random` below. A launch asks for as much more dynamic memory, because
/// it raises the limit of 48 KiB only if the dynamic memory is larger, and the sum must not be.
inline constexpr std::size_t kRangeBytes = 16;

/// Seed and offset of dropout's random numbers, in shared memory. The kernels have no registers left for
/// them, and in a captured step they are not kernel arguments (captured_range.h). Thread 0 writes them, and a
/// barrier must follow.
__device__ __forceinline__ void share_range(const AttentionPlan& p, std::uint64_t (&random)[2]) {
  if (!p.threshold || threadIdx.x != 0) return;
  const PhiloxRange now = current_range(p.range);
  random[0] = now.seed, random[1] = now.offset;
}

/// Which elements of a set dropout keeps, placed as in bits_of(). `random` comes from share_range(). It is
/// volatile, because the compiler would otherwise read it once and keep it in registers. For the same reason
/// no random words are kept from one iteration to the next, whose elements have other counters of Philox.
template <bool kKeyRows, int N>
__device__ __forceinline__ std::uint32_t kept_bits(const AttentionPlan& p,
                                                   const volatile std::uint64_t (&random)[2], int batch,
                                                   int head, int row, int column) {
  static_assert(N <= 8);
  const std::int64_t first = (static_cast<std::int64_t>(batch) * p.heads + head) * p.queries;
  std::uint32_t bits = 0;
#pragma unroll 1
  for (int j = 0; j < 2 * N; ++j) {
    const int r = row + j % 2 * 8, c = column + j / 2 * 8;
    Philox4 four{};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int query = kKeyRows ? c + i : r, key = kKeyRows ? r : c + i;
      const auto e = static_cast<std::uint64_t>((first + query) * p.keys + key);
      // Neighbouring keys share a counter, except the last of four.
      if (kKeyRows || i == 0 || e % 4 == 0) four = philox(random[0], random[1] + e / 4);
      const std::uint32_t low = e % 2 ? four.v[1] : four.v[0], high = e % 2 ? four.v[3] : four.v[2];
      if ((e % 4 < 2 ? low : high) >> 8 >= p.threshold) bits |= 1u << (2 * j + i);
    }
  }
  return bits;
}

}  // namespace tapestry::kernels::cuda
