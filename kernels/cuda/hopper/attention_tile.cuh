#pragma once
// What the kernels of attention by wgmma share: tiles of rows in shared memory, and products of tiles.
//
// A block has three warpgroups: one loads and two multiply. Each of the two owns 64 rows of the block's own
// tile, for instance queries. Tiles of other rows, for instance keys, pass by through a ring of stages.
// Scores and sums of 64 rows are accumulators of wgmma: lane l of warp w holds columns 8 j + 2 (l % 4) + {0,
// 1} of row 16 w + l / 4 in x[4 j] and x[4 j + 1], and of the row 8 below in x[4 j + 2] and x[4 j + 3].
// Rounded to bf16, they are in place as the left operand of the next product.
#include "tapestry/kernels/cuda/attention_tile.cuh"
#include "tapestry/kernels/cuda/hopper/ring.cuh"
#include "tapestry/kernels/cuda/hopper/tensor_map.cuh"

namespace tapestry::kernels::cuda {

inline constexpr int kWgmmaThreads = 384, kWgmmaRows = 128;  // rows of a block's own tile

/// Tiles in shared memory have boxes of 64 columns, one behind the other. A row of a box has 128 bytes.
inline constexpr int kBoxColumns = 64, kBoxRowBytes = 128;

/// Copies kRows rows of a head, from `row` on, to a tile. Missing rows become 0.
template <int kRows, int kWidth>
__device__ __forceinline__ void copy_rows(BFloat16* tile, const ptx::TensorMapBytes& map, int batch, int head,
                                          int row, std::uint64_t* barrier) {
#pragma unroll
  for (int box = 0; box < kWidth / kBoxColumns; ++box)
    ptx::copy_box(tile + box * kRows * kBoxColumns, &map, box * kBoxColumns, row, head, batch, barrier);
}

/// Begins x = a b^T, where a is 64 rows of a tile with kRows rows, and b is a tile with kOthers rows.
template <int kWidth, int kRows, int kOthers>
__device__ __forceinline__ void begin_scores(float (&x)[kOthers / 2], const BFloat16* a, const BFloat16* b) {
  const std::uint64_t of_a = ptx::matrix_descriptor(a, kRows * kBoxRowBytes),
                      of_b = ptx::matrix_descriptor(b, kOthers * kBoxRowBytes);
#pragma unroll
  for (int step = 0; step < kWidth / 16; ++step) {
    const int box = step / 4 * kBoxRowBytes, inside = step % 4 * 32;
    ptx::wgmma_k16_bf16(x, of_a + (box * kRows + inside) / 16, of_b + (box * kOthers + inside) / 16,
                        step > 0);
  }
}

/// Begins sums += w b, where w is 64 x kOthers in fragments, and b is a tile with kOthers rows.
template <int kWidth, int kOthers>
__device__ __forceinline__ void begin_product(float (&sums)[kWidth / 2],
                                              const std::uint32_t (&w)[kOthers / 4], const BFloat16* b) {
  const std::uint64_t of_b = ptx::matrix_descriptor(b, kOthers * kBoxRowBytes);
#pragma unroll
  for (int step = 0; step < kOthers / 16; ++step)
    ptx::wgmma_k16_bf16(sums, w + 4 * step, of_b + step * (16 * kBoxRowBytes / 16));
}

/// Rounds a matrix in the places of sums to fragments.
template <int N>
__device__ __forceinline__ void round_to_fragments(const float (&x)[2 * N], std::uint32_t (&w)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) w[i] = pair_of<BFloat16>(x[2 * i], x[2 * i + 1]);
}

/// The index of the block's tile of work in this round, of `count` tiles, or -1 behind the last one. Every
/// other round runs backwards, because the tiles of a causal head are sorted by their duration.
__device__ __forceinline__ int work_of_round(unsigned round, unsigned count) {
  const unsigned place = round % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x;
  const unsigned index = round * gridDim.x + place;
  return index < count ? static_cast<int>(index) : -1;
}

}  // namespace tapestry::kernels::cuda
