#pragma once
// The backward pass of attention (Dao 2023, "FlashAttention-2", algorithm 2) in three launches. The scores
// are computed again from the saved logarithms of their sums.
//
//   attention_deltas             delta = sum(y dy) for each query, which is also sum(p dp) over the keys
//   attention_gradients, keys    a block owns keys and walks over the queries of all heads that share them:
//                                dv = p^T dy, dk = scale ds^T q, where ds = p (dp - delta) and dp = dy v^T
//   attention_gradients, queries a block owns queries and walks over the keys: dq = scale ds k
//
// Algorithm 2 adds to dq from the blocks of keys by atomic additions, whose order, and so rounding, differs
// from run to run. Two walks compute p and ds twice, which makes 7 products of 5, and give the same bits each
// time, with neither f32 copies of dq nor a launch that clears them.
#include <cmath>

#include "tapestry/kernels/cuda/attention_tile.cuh"
#include "tapestry/kernels/scratch.h"

namespace tapestry::kernels::cuda {

/// A block owns kRows keys or queries; a tile has kOthers of the other kind.
template <class T, int kWidth>
struct BackwardTile {
  static constexpr bool kIsFloat = std::is_same_v<T, float>;
  static constexpr int kWarps = 4, kThreads = 32 * kWarps, kRows = 16 * kWarps, kBlocks = 2;
  static constexpr int kOthers = (kIsFloat ? 32 : 64) / (kWidth > 64 ? 2 : 1);
  static constexpr int kStages = kIsFloat ? 1 : 2;
  // Fragments of own rows stay in registers where they fit.
  static constexpr bool kHeld = !kIsFloat && kWidth <= 64;
  static constexpr int kStage = 2 * kOthers * kWidth;
  static constexpr int kStageFloats = 2 * kOthers;  // logarithms and deltas of a tile of queries
  static constexpr std::size_t kSharedBytes =
      (2 * kRows * kWidth + kStages * kStage) * sizeof(T) +
      (kStages * kStageFloats + kWarps * kPassedFloats<T, kOthers>)*sizeof(float) + kRangeBytes;
};

template <class T>
struct BackwardPlan {
  AttentionPlan scores;
  HeadRows<const T> q, k, v, y, dy;
  HeadRows<T> dq, dk, dv;
  float scale;
  const float* log_sum_exp;
  float* deltas;
  int row_tiles;
};

inline constexpr int kDeltaThreads = 256;

/// One warp per query.
template <class T>
__global__ void __launch_bounds__(kDeltaThreads, 4) attention_deltas(BackwardPlan<T> plan) {
  const AttentionPlan& p = plan.scores;
  const std::int64_t row =
      static_cast<std::int64_t>(blockIdx.x) * (kDeltaThreads / 32) + static_cast<int>(threadIdx.x) / 32;
  if (row >= static_cast<std::int64_t>(p.batch) * p.heads * p.queries) return;
  const auto query = static_cast<int>(row % p.queries), head = static_cast<int>(row / p.queries % p.heads),
             batch = static_cast<int>(row / p.queries / p.heads), lane = static_cast<int>(threadIdx.x) % 32;
  const T* const y = plan.y.of(batch, head) + query * plan.y.row;
  const T* const dy = plan.dy.of(batch, head) + query * plan.dy.row;
  float sum = 0;
  for (int c = lane; c < plan.y.columns; c += 32) sum += load(y[c]) * load(dy[c]);
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(kAllLanes, sum, lanes);
  if (lane == 0) plan.deltas[row] = sum;
}

/// What to subtract from a query's exponents. A query that sees no key has weights of 0.
__device__ __forceinline__ float exponent_of(float log_sum_exp) {
  return log_sum_exp == kNoScore ? -kNoScore : log_sum_exp * kLog2E;
}

template <class T, int kWidth, bool kOfKeys>
__global__ void __launch_bounds__(BackwardTile<T, kWidth>::kThreads, BackwardTile<T, kWidth>::kBlocks)
    attention_gradients(BackwardPlan<T> plan) {
  using Tile = BackwardTile<T, kWidth>;
  constexpr int kOthers = Tile::kOthers, N = kOthers / 8, kThreads = Tile::kThreads;
  const AttentionPlan& p = plan.scores;
  extern __shared__ __align__(16) unsigned char dynamic_shared[];
  T* const shared = reinterpret_cast<T*>(dynamic_shared);
  __shared__ std::uint64_t random[2];
  share_range(p, random);
  T* const own_second = shared + Tile::kRows * kWidth;
  T* const stages = own_second + Tile::kRows * kWidth;
  float* const numbers = reinterpret_cast<float*>(stages + Tile::kStages * Tile::kStage);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  float* const passed = numbers + Tile::kStages * Tile::kStageFloats + warp * kPassedFloats<T, kOthers>;

  int index = static_cast<int>(blockIdx.x);
  // Under a causal mask the first keys, and the last queries, have the most work. They start first.
  const int row_tile = kOfKeys ? index % plan.row_tiles : plan.row_tiles - 1 - index % plan.row_tiles;
  index /= plan.row_tiles;
  const int shared_heads = p.heads / p.groups, own_heads = kOfKeys ? p.groups : p.heads;
  const int own_head = index % own_heads, batch = index / own_heads;
  const int group = kOfKeys ? own_head : own_head / shared_heads;
  const int block_row = row_tile * Tile::kRows, own_count = kOfKeys ? p.keys : p.queries;
  const int other_count = kOfKeys ? p.queries : p.keys;

  // The tiles [first_tile, end_tile) of each head are visible to the block.
  const int first_tile = kOfKeys && p.causal ? std::max(block_row - p.offset, 0) / kOthers : 0;
  const int visible =
      !kOfKeys && p.causal ? std::min(p.keys, block_row + Tile::kRows + p.offset) : other_count;
  const int tiles = std::max((visible + kOthers - 1) / kOthers - first_tile, 0);
  const int steps = tiles * (kOfKeys ? shared_heads : 1);
  const auto head_at = [&](int step) { return kOfKeys ? group * shared_heads + step / tiles : own_head; };

  const auto fetch = [&](int step) {
    const int slot = step % Tile::kStages, first = (first_tile + step % tiles) * kOthers;
    T* const stage = stages + slot * Tile::kStage;
    const HeadRows<const T>& one = kOfKeys ? plan.q : plan.k;
    const HeadRows<const T>& two = kOfKeys ? plan.dy : plan.v;
    const int head = kOfKeys ? head_at(step) : group;
    fetch_rows<kOthers, kWidth, kThreads>(stage, one, one.of(batch, head), first, other_count);
    fetch_rows<kOthers, kWidth, kThreads>(stage + kOthers * kWidth, two, two.of(batch, head), first,
                                          other_count);
    if constexpr (kOfKeys) {
      const int i = static_cast<int>(threadIdx.x);
      if (i < kOthers) {
        const std::int64_t at = (static_cast<std::int64_t>(batch) * p.heads + head) * p.queries + first + i;
        float* const to = numbers + slot * Tile::kStageFloats + i;
        ptx::cp_async4(to, plan.log_sum_exp + at, first + i < p.queries);
        ptx::cp_async4(to + kOthers, plan.deltas + at, first + i < p.queries);
      }
    }
    ptx::cp_async_commit();
  };
  const HeadRows<const T>& own_one = kOfKeys ? plan.k : plan.q;
  const HeadRows<const T>& own_two = kOfKeys ? plan.v : plan.dy;
  fetch_rows<Tile::kRows, kWidth, kThreads>(shared, own_one, own_one.of(batch, own_head), block_row,
                                            own_count);
  fetch_rows<Tile::kRows, kWidth, kThreads>(own_second, own_two, own_two.of(batch, own_head), block_row,
                                            own_count);
  ptx::cp_async_commit();
  if (steps > 0) fetch(0);

  const int warp_row = block_row + warp * 16, row = warp_row + lane / 4, column = lane % 4 * 2;
  const bool idle = warp_row >= own_count;
  OwnRows<T, kWidth, 1, Tile::kHeld> scores_rows;
  OwnRows<T, kWidth, 1, Tile::kHeld && !kOfKeys> weights_rows;
  scores_rows.rows = shared + warp * 16 * kWidth;
  weights_rows.rows = own_second + warp * 16 * kWidth;
  float sums[1][kWidth / 8][4] = {};                                       // dk or dq
  [[maybe_unused]] float value_sums[1][kOfKeys ? kWidth / 8 : 1][4] = {};  // dv
  [[maybe_unused]] float own_exponent[2] = {}, own_delta[2] = {};
  if constexpr (!kOfKeys)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      if (row + 8 * half < p.queries) {
        const std::int64_t at =
            (static_cast<std::int64_t>(batch) * p.heads + own_head) * p.queries + row + 8 * half;
        own_exponent[half] = exponent_of(plan.log_sum_exp[at]);
        own_delta[half] = plan.deltas[at];
      }

  for (int step = 0; step < steps; ++step) {
    if (Tile::kStages == 1 && step > 0) {
      __syncthreads();  // all warps have read the previous tile
      fetch(step);
    }
    ptx::cp_async_wait<0>();
    __syncthreads();
    if (Tile::kStages > 1 && step + 1 < steps) fetch(step + 1);
    if (step == 0) {
      scores_rows.hold();
      weights_rows.hold();
    }
    const int first = (first_tile + step % tiles) * kOthers, head = head_at(step);
    const int last_query = (kOfKeys ? first + kOthers : warp_row + 16) - 1,
              first_query = kOfKeys ? first : warp_row, first_key = kOfKeys ? warp_row : first,
              last_key = (kOfKeys ? warp_row + 16 : first + kOthers) - 1;
    if (idle || (p.causal && first_key > last_query + p.offset)) continue;
    const T* const stage = stages + step % Tile::kStages * Tile::kStage;
    const float* const stage_numbers = numbers + step % Tile::kStages * Tile::kStageFloats;

    float x[1][N][4], dx[1][N][4];  // weights, and the gradients of weights and then of scores
    scores_rows.times_transposed(stage, x);
    const bool edge = last_key >= p.keys || (p.causal && last_key > first_query + p.offset);
    mask_scores<T, kOfKeys>(p, batch, head, row, first + column, edge, x[0]);
    weights_rows.times_transposed(stage + kOthers * kWidth, dx);
    std::uint32_t kept = 0;
    if (p.threshold) {
      kept = kept_bits<kOfKeys, N>(p, random, batch, head, row, first + column);
#pragma unroll
      for (int j = 0; j < N; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) dx[0][j][i] = kept >> (4 * j + i) & 1 ? dx[0][j][i] * p.kept : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < N; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float exponent, delta;
        if constexpr (kOfKeys) {
          const int c = 8 * j + column + i % 2;
          exponent = exponent_of(stage_numbers[c]), delta = stage_numbers[kOthers + c];
        } else {
          exponent = own_exponent[i / 2], delta = own_delta[i / 2];
        }
        x[0][j][i] = power_of_2<T>(x[0][j][i] * p.exponent - exponent);
        dx[0][j][i] = x[0][j][i] * (dx[0][j][i] - delta);
      }
    if constexpr (kOfKeys) {
      if (p.threshold)
#pragma unroll
        for (int j = 0; j < N; ++j)
#pragma unroll
          for (int i = 0; i < 4; ++i) x[0][j][i] = kept >> (4 * j + i) & 1 ? x[0][j][i] * p.kept : 0.0f;
      add_product<T, kWidth>(x, stage + kOthers * kWidth, passed, value_sums);
    }
    add_product<T, kWidth>(dx, stage, passed, sums);
  }
  ptx::cp_async_wait<0>();
  __syncthreads();  // no thread copies the block's own rows any more, also if there was no tile
  if (idle) return;

  const auto finish = [&](const HeadRows<T>& to, T* tile, const float(&x)[1][kWidth / 8][4], float factor) {
    if (!to.data) return;
#pragma unroll
    for (int j = 0; j < kWidth / 8; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        put_pair<T, kWidth>(tile, lane / 4 + 8 * half, 8 * j + column, x[0][j][2 * half] * factor,
                            x[0][j][2 * half + 1] * factor);
    store_rows<16, kWidth>(tile, to, to.of(batch, own_head) + warp_row * to.row, own_count - warp_row);
  };
  // Only this warp has read its own rows.
  finish(kOfKeys ? plan.dk : plan.dq, shared + warp * 16 * kWidth, sums, plan.scale);
  if constexpr (kOfKeys) finish(plan.dv, own_second + warp * 16 * kWidth, value_sums, 1);
}

template <class T, int kWidth>
void launch_attention_gradients(const AttentionBackwardArgs& a, BackwardPlan<T> plan,
                                const LaunchContext& context) {
  using Tile = BackwardTile<T, kWidth>;
  const AttentionShape& s = a.shape;
  const auto start = [&](void (*kernel)(BackwardPlan<T>), std::int64_t heads, std::int64_t rows) {
    plan.row_tiles = static_cast<int>((rows + Tile::kRows - 1) / Tile::kRows);
    const std::int64_t blocks = plan.row_tiles * heads * s.batch;
    if (blocks == 0) return;
    check(blocks < std::int64_t{1} << 31, "[scaled_dot_product_attention] ", s.batch, " batches of ", heads,
          " heads with ", rows, " rows; divide the batch, one launch takes 2^31 blocks");
    launch(kernel, static_cast<unsigned>(blocks), Tile::kThreads, Tile::kSharedBytes, stream_of(context),
           plan);
  };
  if (a.dk || a.dv) start(&attention_gradients<T, kWidth, true>, s.groups, s.keys);
  if (a.dq) start(&attention_gradients<T, kWidth, false>, s.heads, s.queries);
}

template <class T>
void launch_attention_backward(const AttentionBackwardArgs& a, const LaunchContext& context) {
  const AttentionShape& s = a.shape;
  const auto out = [](const MutableArray& to, const AttentionStrides& strides, std::int64_t columns) {
    return head_rows(to ? to.as<T>() : nullptr, strides, columns);
  };
  const std::int64_t queries = s.batch * s.heads * s.queries;
  const Scratch<float> deltas(context.device, queries);
  const BackwardPlan<T> plan{.scores = attention_plan<T>(s, a.scale, a.mask, a.dropout),
                             .q = head_rows(a.q.as<T>(), a.q_strides, s.width),
                             .k = head_rows(a.k.as<T>(), a.k_strides, s.width),
                             .v = head_rows(a.v.as<T>(), a.v_strides, s.value_width),
                             .y = head_rows(a.y.as<T>(), a.y_strides, s.value_width),
                             .dy = head_rows(a.dy.as<T>(), a.dy_strides, s.value_width),
                             .dq = out(a.dq, a.dq_strides, s.width),
                             .dk = out(a.dk, a.dk_strides, s.width),
                             .dv = out(a.dv, a.dv_strides, s.value_width),
                             .scale = static_cast<float>(a.scale),
                             .log_sum_exp = a.log_sum_exp.as<float>(),
                             .deltas = deltas.data(),
                             .row_tiles = 0};
  constexpr int kPerBlock = kDeltaThreads / 32;
  if (queries > 0)
    launch(&attention_deltas<T>, static_cast<unsigned>((queries + kPerBlock - 1) / kPerBlock), kDeltaThreads,
           0, stream_of(context), plan);
  for_head_width(s, [&]<int kWidth>() { launch_attention_gradients<T, kWidth>(a, plan, context); });
}

}  // namespace tapestry::kernels::cuda
