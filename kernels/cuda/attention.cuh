#pragma once
// The forward pass of attention (Dao 2023, "FlashAttention-2", algorithm 1). A block holds some queries and
// walks over the keys. Scores stay in registers; their maximum and sum are merged from tile to tile
// (Milakov and Gimelshein 2018). Keys and values arrive by cp.async while the previous tile is multiplied.
// With few queries, several blocks divide the keys of one head, and a second kernel merges their results
// (Dao et al. 2023, "Flash-Decoding").
#include <cmath>

#include "tapestry/kernels/cuda/attention_tile.cuh"
#include "tapestry/kernels/scratch.h"

namespace tapestry::kernels::cuda {

/// kRows queries per block, kKeys keys per tile. Two sets per warp need half the reads of shared memory per
/// product, and registers for sums of 64 columns.
template <class T, int kWidth>
struct ForwardTile {
  static constexpr bool kIsFloat = std::is_same_v<T, float>;
  static constexpr bool kHeld = !kIsFloat && kWidth < 128;  // of 128 columns, one register would be spilled
  static constexpr int kSets = !kIsFloat && kWidth <= 64 ? 2 : 1;
  static constexpr int kWarps = !kIsFloat && kWidth > 64 ? 8 : 4;
  static constexpr int kKeys = kIsFloat ? 32 : 64;
  static constexpr int kStages = kIsFloat && kWidth > 64 ? 1 : 2;
  static constexpr int kThreads = 32 * kWarps, kRows = 16 * kSets * kWarps;
  // Registers and shared memory allow so many per SM.
  static constexpr int kBlocks = kWarps == 8 ? 1 : kIsFloat && kWidth == 32 ? 3 : 2;
  static constexpr int kStage = 2 * kKeys * kWidth;
  static constexpr std::size_t kSharedBytes = (kRows * kWidth + kStages * kStage) * sizeof(T) +
                                              kWarps * kPassedFloats<T, kKeys> * sizeof(float) + kRangeBytes;
};

template <class T>
struct ForwardPlan {
  AttentionPlan scores;
  HeadRows<const T> q, k, v;
  HeadRows<T> y;
  float* log_sum_exp;
  int row_tiles, splits, tiles_per_split;
  float* parts;  // (splits, batch, heads, queries, value width) if splits > 1
  float* part_logs;
};

template <class T, int kWidth>
__global__ void __launch_bounds__(ForwardTile<T, kWidth>::kThreads, ForwardTile<T, kWidth>::kBlocks)
    attention_forward(ForwardPlan<T> plan) {
  using Tile = ForwardTile<T, kWidth>;
  constexpr int kSets = Tile::kSets, kKeys = Tile::kKeys, N = kKeys / 8, kThreads = Tile::kThreads;
  const AttentionPlan& p = plan.scores;
  extern __shared__ __align__(16) unsigned char dynamic_shared[];
  T* const shared = reinterpret_cast<T*>(dynamic_shared);
  __shared__ std::uint64_t random[2];
  share_range(p, random);
  T* const stages = shared + Tile::kRows * kWidth;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  float* const passed =
      reinterpret_cast<float*>(stages + Tile::kStages * Tile::kStage) + warp * kPassedFloats<T, kKeys>;

  // The last queries of a causal head see the most keys, so their blocks start first.
  int index = static_cast<int>(blockIdx.x);
  const int row_tile = plan.row_tiles - 1 - index % plan.row_tiles;
  index /= plan.row_tiles;
  const int split = index % plan.splits;
  index /= plan.splits;
  const int head = index % p.heads, batch = index / p.heads, group = head / (p.heads / p.groups);
  const int block_row = row_tile * Tile::kRows;
  const T* const keys = plan.k.of(batch, group);
  const T* const values = plan.v.of(batch, group);
  const int seen = p.causal ? std::min(p.keys, block_row + Tile::kRows + p.offset) : p.keys;
  const int tiles = (seen + kKeys - 1) / kKeys;
  const int begin = split * plan.tiles_per_split, end = std::min(tiles, begin + plan.tiles_per_split);

  const auto fetch = [&](int tile) {
    T* const stage = stages + (tile - begin) % Tile::kStages * Tile::kStage;
    fetch_rows<kKeys, kWidth, kThreads>(stage, plan.k, keys, tile * kKeys, p.keys);
    fetch_rows<kKeys, kWidth, kThreads>(stage + kKeys * kWidth, plan.v, values, tile * kKeys, p.keys);
    ptx::cp_async_commit();
  };
  fetch_rows<Tile::kRows, kWidth, kThreads>(shared, plan.q, plan.q.of(batch, head), block_row, p.queries);
  ptx::cp_async_commit();
  if (begin < end) fetch(begin);

  const int warp_row = block_row + warp * 16 * kSets, row = warp_row + lane / 4, column = lane % 4 * 2;
  const bool idle = warp_row >= p.queries;
  OwnRows<T, kWidth, kSets, Tile::kHeld> own;
  own.rows = shared + warp * 16 * kSets * kWidth;
  float sums[kSets][kWidth / 8][4] = {};
  // The largest exponent and the sum of the lane's exponentials relative to it, for rows l / 4 and l / 4 + 8.
  float largest[kSets][2], total[kSets][2];
#pragma unroll
  for (int set = 0; set < kSets; ++set)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      largest[set][half] = kNoScore;
      total[set][half] = 0;
    }

  for (int tile = begin; tile < end; ++tile) {
    if (Tile::kStages == 1 && tile > begin) {
      __syncthreads();  // all warps have read the previous tile
      fetch(tile);
    }
    ptx::cp_async_wait<0>();
    __syncthreads();
    if (Tile::kStages > 1 && tile + 1 < end) fetch(tile + 1);
    const T* const stage = stages + (tile - begin) % Tile::kStages * Tile::kStage;
    const int first = tile * kKeys;
    if (tile == begin) own.hold();
    if (idle || (p.causal && first > warp_row + 16 * kSets - 1 + p.offset)) continue;

    float x[kSets][N][4];
    own.times_transposed(stage, x);
    const bool edge = first + kKeys > p.keys || (p.causal && first + kKeys - 1 > warp_row + p.offset);
#pragma unroll
    for (int set = 0; set < kSets; ++set) {
      mask_scores<T, false>(p, batch, head, row + 16 * set, first + column, edge, x[set]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float most = kNoScore;
#pragma unroll
        for (int j = 0; j < N; ++j) most = fmaxf(most, fmaxf(x[set][j][2 * half], x[set][j][2 * half + 1]));
        most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 1));
        most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 2));
        const float before = largest[set][half], now = fmaxf(before, most * p.exponent);
        // A query that has seen no key yet subtracts 0, because -inf - (-inf) is NaN. fmaxf() ignores NaN,
        // but the exponential of NaN, and of inf - inf, makes the sum NaN.
        const float shift = now == kNoScore ? 0.0f : now;
        const float factor = power_of_2<T>(before - shift);
        float sum = 0;
#pragma unroll
        for (int j = 0; j < N; ++j)
#pragma unroll
          for (int i = 2 * half; i < 2 * half + 2; ++i) {
            x[set][j][i] = power_of_2<T>(x[set][j][i] * p.exponent - shift);
            sum += x[set][j][i];
          }
        total[set][half] = total[set][half] * factor + sum;
        largest[set][half] = now;
#pragma unroll
        for (int j = 0; j < kWidth / 8; ++j)
#pragma unroll
          for (int i = 2 * half; i < 2 * half + 2; ++i) sums[set][j][i] *= factor;
      }
      if (p.threshold) {
        const std::uint32_t kept =
            kept_bits<false, N>(p, random, batch, head, row + 16 * set, first + column);
#pragma unroll
        for (int j = 0; j < N; ++j)
#pragma unroll
          for (int i = 0; i < 4; ++i) x[set][j][i] = kept >> (4 * j + i) & 1 ? x[set][j][i] : 0.0f;
      }
    }
    add_product<T, kWidth>(x, stage + kKeys * kWidth, passed, sums);
  }
  ptx::cp_async_wait<0>();
  __syncthreads();  // no thread copies queries any more, also if there was no tile
  if (idle) return;

#pragma unroll
  for (int set = 0; set < kSets; ++set)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = total[set][half];
      sum += __shfl_xor_sync(kAllLanes, sum, 1);
      sum += __shfl_xor_sync(kAllLanes, sum, 2);
      // A query that sees no key has the result 0 if a mask hides the keys, or if another split has them. If
      // the query sees keys but all scores are -inf, the result is NaN.
      const bool blind = sum == 0 && (p.mask || plan.splits > 1);
      const float factor = blind ? 0.0f : p.kept / sum;
      const int query = row + 16 * set + 8 * half;
      const std::int64_t at = (static_cast<std::int64_t>(batch) * p.heads + head) * p.queries + query;
      const std::int64_t rows = static_cast<std::int64_t>(p.batch) * p.heads * p.queries;
      if (lane % 4 == 0 && query < p.queries) {
        const float logarithm = blind ? kNoScore : largest[set][half] * kLn2 + logf(sum);
        if (plan.splits > 1) plan.part_logs[split * rows + at] = logarithm;
        else plan.log_sum_exp[at] = logarithm;
      }
      if (plan.splits > 1) {
        float* const to = plan.parts + (split * rows + at) * plan.v.columns;
#pragma unroll
        for (int j = 0; j < kWidth / 8; ++j)
#pragma unroll
          for (int i = 0; i < 2; ++i)
            if (query < p.queries && 8 * j + column + i < plan.v.columns)
              to[8 * j + column + i] = sums[set][j][2 * half + i] * factor;
      } else {
#pragma unroll
        for (int j = 0; j < kWidth / 8; ++j)  // only this warp has read these rows
          put_pair<T, kWidth>(shared, query - block_row, 8 * j + column, sums[set][j][2 * half] * factor,
                              sums[set][j][2 * half + 1] * factor);
      }
    }
  if (plan.splits > 1) return;
  store_rows<16 * kSets, kWidth>(own.rows, plan.y, plan.y.of(batch, head) + warp_row * plan.y.row,
                                 p.queries - warp_row);
}

inline constexpr int kMergeThreads = 128;

/// Merges the parts of queries whose keys were divided. One warp per query.
template <class T>
__global__ void __launch_bounds__(kMergeThreads, 8) attention_merge(ForwardPlan<T> plan) {
  const AttentionPlan& p = plan.scores;
  const std::int64_t rows = static_cast<std::int64_t>(p.batch) * p.heads * p.queries;
  const std::int64_t row =
      static_cast<std::int64_t>(blockIdx.x) * (kMergeThreads / 32) + static_cast<int>(threadIdx.x) / 32;
  if (row >= rows) return;
  const int lane = static_cast<int>(threadIdx.x) % 32, columns = plan.v.columns;
  float largest = kNoScore, total = 0;
  for (int s = 0; s < plan.splits; ++s) largest = fmaxf(largest, plan.part_logs[s * rows + row]);
  const float shift = largest == kNoScore ? 0.0f : largest;
  for (int s = 0; s < plan.splits; ++s) total += expf(plan.part_logs[s * rows + row] - shift);
  const bool blind = total == 0 && p.mask;
  const auto query = static_cast<int>(row % p.queries), head = static_cast<int>(row / p.queries % p.heads),
             batch = static_cast<int>(row / p.queries / p.heads);
  T* const y = plan.y.of(batch, head) + query * plan.y.row;
  for (int c = lane; c < columns; c += 32) {
    float sum = 0;
    for (int s = 0; s < plan.splits; ++s)
      sum += expf(plan.part_logs[s * rows + row] - shift) * plan.parts[(s * rows + row) * columns + c];
    y[c] = store<T>(blind ? 0.0f : sum / total);
  }
  if (lane == 0) plan.log_sum_exp[row] = blind ? kNoScore : shift + logf(total);
}

/// Into how many parts to divide the keys: if the blocks leave SMs idle, as many as fill them, but at least 4
/// tiles of keys each. An H100 has 132 SMs.
inline int key_splits(std::int64_t blocks, std::int64_t tiles, std::int64_t wanted_blocks) {
  if (blocks * 2 > wanted_blocks) return 1;
  return static_cast<int>(std::clamp<std::int64_t>(std::min(wanted_blocks / blocks, tiles / 4), 1, 32));
}

template <class T, int kWidth>
void launch_attention_of_width(const AttentionArgs& a, const LaunchContext& context,
                               std::int64_t wanted_blocks) {
  using Tile = ForwardTile<T, kWidth>;
  const AttentionShape& s = a.shape;
  const auto blocks_of = [](std::int64_t n, std::int64_t size) { return (n + size - 1) / size; };
  ForwardPlan<T> plan{.scores = attention_plan<T>(s, a.scale, a.mask, a.dropout),
                      .q = head_rows(a.q.as<T>(), a.q_strides, s.width),
                      .k = head_rows(a.k.as<T>(), a.k_strides, s.width),
                      .v = head_rows(a.v.as<T>(), a.v_strides, s.value_width),
                      .y = head_rows(a.y.as<T>(), a.y_strides, s.value_width),
                      .log_sum_exp = a.log_sum_exp.as<float>(),
                      .row_tiles = static_cast<int>(blocks_of(s.queries, Tile::kRows)),
                      .splits = 1,
                      .tiles_per_split = 0,
                      .parts = nullptr,
                      .part_logs = nullptr};
  const std::int64_t rows = s.batch * s.heads * s.queries, tiles = blocks_of(s.keys, Tile::kKeys);
  std::int64_t blocks = plan.row_tiles * s.heads * s.batch;
  if (blocks == 0) return;
  plan.splits = key_splits(blocks, tiles, wanted_blocks);
  plan.tiles_per_split = static_cast<int>(blocks_of(tiles, plan.splits));
  const Scratch<float> parts(context.device, plan.splits > 1 ? plan.splits * rows * s.value_width : 0);
  const Scratch<float> logs(context.device, plan.splits > 1 ? plan.splits * rows : 0);
  plan.parts = parts.data(), plan.part_logs = logs.data();
  blocks *= plan.splits;
  check(blocks < std::int64_t{1} << 31, "[scaled_dot_product_attention] ", s.batch, " batches of ", s.heads,
        " heads with ", s.queries, " queries; divide the batch, one launch takes 2^31 blocks");
  launch(&attention_forward<T, kWidth>, static_cast<unsigned>(blocks), Tile::kThreads, Tile::kSharedBytes,
         stream_of(context), plan);
  if (plan.splits > 1)
    launch(&attention_merge<T>, static_cast<unsigned>(blocks_of(rows, kMergeThreads / 32)), kMergeThreads, 0,
           stream_of(context), plan);
}

/// The number of blocks below which the keys are divided. Tests pass others.
inline constexpr std::int64_t kWantedBlocks = 264;

template <class T>
void launch_attention(const AttentionArgs& a, const LaunchContext& context,
                      std::int64_t wanted_blocks = kWantedBlocks) {
  for_head_width(a.shape,
                 [&]<int kWidth>() { launch_attention_of_width<T, kWidth>(a, context, wanted_blocks); });
}

}  // namespace tapestry::kernels::cuda
