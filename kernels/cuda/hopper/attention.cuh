#pragma once
// The forward pass of attention in bf16 by wgmma, for compute capability 9.0 (Shah et al. 2024,
// "FlashAttention-3", algorithm 2 with the overlap of section 3.2).
//
// A block owns 128 queries and walks over the keys. The tiles of keys and values pass through one ring of
// stages, in the order in which they are needed: K0, K1, V0, K2, V1, ... While the tensor cores multiply one
// tile's softmax weights by its values, the warpgroup computes the exponentials of the next tile's scores.
// Blocks are persistent: the loads for the next queries begin while the last results are written.
#include "tapestry/kernels/cuda/hopper/attention_tile.cuh"

namespace tapestry::kernels::cuda {

/// One block per SM.
struct WgmmaAttentionTile {
  static constexpr int kKeys = 128, kStages = 4;
};

template <int kWidth>
struct WgmmaAttentionShared {
  using Tile = WgmmaAttentionTile;
  alignas(1024) BFloat16 queries[kWgmmaRows * kWidth];
  alignas(1024) BFloat16 stages[Tile::kStages][Tile::kKeys * kWidth];
  alignas(16) BFloat16 results[8][16 * kWidth];  // of each multiplying warp
  std::uint64_t full[Tile::kStages], empty[Tile::kStages], queries_full, queries_empty;
};

struct WgmmaAttentionPlan {
  AttentionPlan scores;
  HeadRows<BFloat16> y;
  float* log_sum_exp;
  unsigned row_tiles, count;  // tiles of queries of a head, and of all
};

/// A tile of queries. `tiles` is how many tiles of keys it sees.
struct QueryTile {
  int batch, head, row, tiles;

  __device__ __forceinline__ QueryTile(const WgmmaAttentionPlan& plan, int index) {
    const AttentionPlan& p = plan.scores;
    const auto row_tiles = static_cast<int>(plan.row_tiles);
    row = (row_tiles - 1 - index % row_tiles) * kWgmmaRows;
    index /= row_tiles;
    head = index % p.heads, batch = index / p.heads;
    const int seen = p.causal ? std::min(p.keys, row + kWgmmaRows + p.offset) : p.keys;
    tiles = (seen + WgmmaAttentionTile::kKeys - 1) / WgmmaAttentionTile::kKeys;
  }
};

/// The largest exponents so far of a lane's two rows, and the sums of the lane's exponentials relative to
/// them.
struct OnlineSoftmax {
  float largest[2] = {kNoScore, kNoScore}, total[2] = {0, 0};

  /// Turns the scores of a tile into exponentials, and gives the factors for sums of earlier tiles.
  template <int N>
  __device__ __forceinline__ void add(float (&x)[N], float exponent, float (&factor)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float most = kNoScore;
#pragma unroll
      for (int i = 2 * half; i < N; i += 4) most = fmaxf(most, fmaxf(x[i], x[i + 1]));
      most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 1));
      most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, 2));
      const float now = fmaxf(largest[half], most * exponent);
      // If all scores are -inf so far, 0 is subtracted, because -inf - (-inf) is NaN. fmaxf() ignores NaN,
      // but the exponential of NaN, and of inf - inf, makes the sum NaN.
      const float shift = now == kNoScore ? 0.0f : now;
      factor[half] = ptx::exp2_approx(largest[half] - shift);
      float sum = 0;
#pragma unroll
      for (int i = 2 * half; i < N; i += 4)
#pragma unroll
        for (int e = i; e < i + 2; ++e) {
          x[e] = ptx::exp2_approx(x[e] * exponent - shift);
          sum += x[e];
        }
      total[half] = total[half] * factor[half] + sum;
      largest[half] = now;
    }
  }
};

/// The maps describe q in boxes of 128 rows, and k and v in boxes of kKeys rows, by 64 columns. There is at
/// least one key.
template <int kWidth>
__global__ void __launch_bounds__(kWgmmaThreads, 1)
    attention_wgmma(const __grid_constant__ WgmmaAttentionPlan plan,
                    const __grid_constant__ ptx::TensorMapBytes map_q,
                    const __grid_constant__ ptx::TensorMapBytes map_k,
                    const __grid_constant__ ptx::TensorMapBytes map_v) {
  using Tile = WgmmaAttentionTile;
  constexpr int kKeys = Tile::kKeys;
  constexpr int kTileBytes = kKeys * kWidth * 2, kQueryBytes = kWgmmaRows * kWidth * 2;
  const AttentionPlan& p = plan.scores;
  extern __shared__ __align__(1024) unsigned char tapestry_wgmma_shared[];
  auto& shared = *reinterpret_cast<WgmmaAttentionShared<kWidth>*>(tapestry_wgmma_shared);
  const int warpgroup = static_cast<int>(threadIdx.x) / 128, lane = static_cast<int>(threadIdx.x) % 32;

  if (threadIdx.x == 0) {
#pragma unroll
    for (int i = 0; i < Tile::kStages; ++i) {
      ptx::barrier_init(&shared.full[i], 1);
      ptx::barrier_init(&shared.empty[i], 8);  // one arrival per multiplying warp
    }
    ptx::barrier_init(&shared.queries_full, 1);
    ptx::barrier_init(&shared.queries_empty, 8);
    ptx::fence_barrier_init();
  }
  __syncthreads();
  StageOfRing<Tile::kStages> at;
  unsigned parity = 0;  // of the phase of queries_full

  if (warpgroup == 0) {
    ptx::give_registers<40>();
    if (threadIdx.x != 0) return;
    ptx::prefetch_map(&map_q);
    ptx::prefetch_map(&map_k);
    ptx::prefetch_map(&map_v);
    int index;
    for (unsigned round = 0; (index = work_of_round(round, plan.count)) >= 0; ++round) {
      const QueryTile own(plan, index);
      const int group = own.head / (p.heads / p.groups);
      const auto load = [&](const ptx::TensorMapBytes& map, int tile) {
        ptx::barrier_wait(&shared.empty[at.stage], at.parity ^ 1);
        ptx::barrier_arrive_expect(&shared.full[at.stage], kTileBytes);
        copy_rows<kKeys, kWidth>(shared.stages[at.stage], map, own.batch, group, tile * kKeys,
                                 &shared.full[at.stage]);
        at.advance();
      };
      load(map_k, 0);
      ptx::barrier_wait(&shared.queries_empty, parity ^ 1);
      ptx::barrier_arrive_expect(&shared.queries_full, kQueryBytes);
      copy_rows<kWgmmaRows, kWidth>(shared.queries, map_q, own.batch, own.head, own.row,
                                    &shared.queries_full);
      parity ^= 1;
#pragma unroll 1
      for (int tile = 1; tile < own.tiles; ++tile) {
        load(map_k, tile);
        load(map_v, tile - 1);
      }
      load(map_v, own.tiles - 1);
    }
    return;
  }

  ptx::take_registers<232>();
  const int warp = static_cast<int>(threadIdx.x) / 32 - 4, column = lane % 4 * 2;
  const BFloat16* const queries = shared.queries + (warpgroup - 1) * 64 * kBoxColumns;
  const auto release = [&](std::uint64_t& barrier) {
    if (lane == 0) ptx::barrier_arrive(&barrier);
  };
  float x[kKeys / 2], sums[kWidth / 2];
  std::uint32_t weights[kKeys / 4];
  // Waits for the next stage of the ring, and begins a product with it. Returns the stage.
  const auto begin = [&](auto product) {
    const int stage = at.stage;
    ptx::barrier_wait(&shared.full[stage], at.parity);
    ptx::wgmma_fence();
    product(shared.stages[stage]);
    ptx::wgmma_commit();
    at.advance();
    return stage;
  };
  const auto keys = [&](const BFloat16* tile) { begin_scores<kWidth, kWgmmaRows, kKeys>(x, queries, tile); };
  const auto values = [&](const BFloat16* tile) { begin_product<kWidth, kKeys>(sums, weights, tile); };
  const auto keep = [&] { ptx::keep_sums(x), ptx::keep_sums(sums), ptx::keep_fragments(weights); };

  int index;
  for (unsigned round = 0; (index = work_of_round(round, plan.count)) >= 0; ++round) {
    const QueryTile own(plan, index);
    const int warp_row = own.row + warp * 16, row = warp_row + lane / 4;
    // Hides the keys that the rows do not see, or that do not exist.
    const auto hide = [&](int tile) {
      const int first = tile * kKeys;
      if (first + kKeys <= p.keys && !(p.causal && first + kKeys - 1 > warp_row + p.offset)) return;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int seen = p.causal ? std::min(p.keys, row + 8 * half + p.offset + 1) : p.keys;
        const int here = seen - first - column;
#pragma unroll
        for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
          for (int i = 0; i < 2; ++i)
            if (8 * j + i >= here) x[4 * j + 2 * half + i] = kNoScore;
      }
    };
    OnlineSoftmax softmax;
    float factor[2];
#pragma unroll
    for (int i = 0; i < kWidth / 2; ++i) sums[i] = 0;

    ptx::barrier_wait(&shared.queries_full, parity);
    parity ^= 1;
    keep();
    int key_stage = begin(keys);
    ptx::wgmma_wait<0>();
    ptx::keep_sums(x);
    release(shared.empty[key_stage]);
    if (own.tiles == 1) release(shared.queries_empty);
    hide(0);
    softmax.add(x, p.exponent, factor);
    round_to_fragments(x, weights);

    for (int tile = 1; tile < own.tiles; ++tile) {
      keep();
      key_stage = begin(keys);
      const int value_stage = begin(values);
      ptx::wgmma_wait<1>();  // the scores, but not yet the product with values
      ptx::keep_sums(x);
      release(shared.empty[key_stage]);
      if (tile == own.tiles - 1) release(shared.queries_empty);
      hide(tile);
      softmax.add(x, p.exponent, factor);
      // ptxas would move the exponentials behind the wait for the product. It does not move them over the
      // wait for the next stage, which is a loop.
      ptx::keep_sums(x);
      ptx::barrier_wait(&shared.full[at.stage], at.parity);
      ptx::wgmma_wait<0>();
      ptx::keep_sums(sums), ptx::keep_fragments(weights);
      release(shared.empty[value_stage]);
#pragma unroll
      for (int i = 0; i < kWidth / 2; ++i) sums[i] *= factor[i / 2 % 2];
      round_to_fragments(x, weights);
    }
    keep();
    const int value_stage = begin(values);
    ptx::wgmma_wait<0>();
    ptx::keep_sums(sums), ptx::keep_fragments(weights);
    release(shared.empty[value_stage]);

    BFloat16* const results = shared.results[warp];
    __syncwarp();  // the results of the queries before have been stored
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float total = softmax.total[half];
      total += __shfl_xor_sync(kAllLanes, total, 1);
      total += __shfl_xor_sync(kAllLanes, total, 2);
      const float inverse = 1 / total;
      const int query = row + 8 * half;
      if (lane % 4 == 0 && query < p.queries)
        plan.log_sum_exp[(static_cast<std::int64_t>(own.batch) * p.heads + own.head) * p.queries + query] =
            softmax.largest[half] * kLn2 + logf(total);
#pragma unroll
      for (int j = 0; j < kWidth / 8; ++j)
        put_pair<BFloat16, kWidth>(results, lane / 4 + 8 * half, 8 * j + column,
                                   sums[4 * j + 2 * half] * inverse, sums[4 * j + 2 * half + 1] * inverse);
    }
    store_rows<16, kWidth>(results, plan.y, plan.y.of(own.batch, own.head) + warp_row * plan.y.row,
                           p.queries - warp_row);
  }
}

}  // namespace tapestry::kernels::cuda
