#pragma once
// C = A B in bf16 by wgmma, with f32 sums, for compute capability 9.0.
//
// Warp specialisation: of three warpgroups, one loads and two multiply. A ring of kStages stages in shared
// memory connects them. Each stage has two mbarriers: `full` completes when TMA has written the stage's tiles
// of A and B, and `empty` when all warps have finished reading them. Blocks are persistent: a block computes
// tile after tile, and the loads of the next tile begin while the sums of the last one are written. If there
// are too few tiles to fill a GPU, k is split (split-K), and add_wgmma_splits() adds the parts.
#include "tapestry/kernels/cuda/hopper/ring.cuh"
#include "tapestry/kernels/cuda/matmul_plan.cuh"

namespace tapestry::kernels::cuda {

/// One block per SM. Each of the two multiplying warpgroups computes 64 x 256 sums, 128 registers per thread.
struct WgmmaTile {
  static constexpr int kM = 128, kN = 256, kDepth = 64, kThreads = 384;
  static constexpr int kStages = 4;
};

/// The shared memory of a block. TMA and wgmma swizzle by address, so tiles begin at multiples of 1024 bytes.
template <class T>
struct WgmmaShared {
  static constexpr int kPitch = 40;  // two rows, of 32 sums each, lie in different banks
  alignas(1024) T a[WgmmaTile::kStages][WgmmaTile::kM * WgmmaTile::kDepth];
  alignas(1024) T b[WgmmaTile::kStages][WgmmaTile::kN * WgmmaTile::kDepth];
  alignas(16) float sums[8][16 * kPitch];  // of each multiplying warp
  std::uint64_t full[WgmmaTile::kStages], empty[WgmmaTile::kStages];
};

/// Copies a tile of kLines lines of an operand (rows of A, columns of B) by 64 of k. Across k, a box has 64
/// lines, because a box of 128 bytes is as wide as swizzling allows.
template <int kLines, bool kAlongK, class T>
__device__ __forceinline__ void copy_tile(T* to, const ptx::TensorMapBytes& map, int line, int k, int matrix,
                                          std::uint64_t* barrier) {
  if constexpr (kAlongK) {
    ptx::copy_box(to, &map, k, line, matrix, barrier);
  } else {
#pragma unroll
    for (int i = 0; i < kLines / 64; ++i) {
      ptx::copy_box(to + i * 64 * WgmmaTile::kDepth, &map, line + 64 * i, k, matrix, barrier);
    }
  }
}

/// Writes a warp's sums, 16 rows from `row` on by 256 columns, in slices of 32 columns, which pass through
/// shared memory, so that whole sectors of C are written.
template <class T>
__device__ __forceinline__ void finish_wgmma_tile(const GemmPlan<T>& p, const GemmBlock& block,
                                                  std::int64_t row, const float (&sums)[128], float* slice) {
  constexpr int kPitch = WgmmaShared<T>::kPitch, kSliceColumns = 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float* const to = slice + lane / 4 * kPitch + lane % 4 * 2;
  const float* const from = slice + lane / 8 * kPitch + lane % 8 * 4;
  const std::int64_t partial = (static_cast<std::int64_t>(block.split) * p.batch + block.batch) * p.m;
  // The offset of the lane's i-th row in C, or in the workspace of partial sums.
  const auto find_row = [&](int i, std::int64_t& at) {
    const std::int64_t r = row + lane / 8 + 4 * i;
    at = p.splits > 1 ? (partial + r) * p.partial_row : block.c + r * p.c_row;
    return r < p.m;
  };
#pragma unroll 1
  for (int s = 0; s < WgmmaTile::kN / kSliceColumns; ++s) {
    __syncwarp();  // the previous slice has been read
#pragma unroll
    for (int j = 0; j < WgmmaTile::kN / 8; ++j) {
      if (j / 4 != s) continue;  // registers cannot be indexed at run time
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Pack<float, 2> two{{sums[4 * j + 2 * half], sums[4 * j + 2 * half + 1]}};
        *reinterpret_cast<Pack<float, 2>*>(to + half * 8 * kPitch + j % 4 * 8) = two;
      }
    }
    __syncwarp();
    const std::int64_t column = block.column + s * kSliceColumns + lane % 8 * 4;
    if (column >= p.n) continue;
    const auto read = [&](int i) { return *reinterpret_cast<const Quad*>(from + 4 * i * kPitch); };
    if (p.splits > 1) {
#pragma unroll 1
      for (int i = 0; i < 4; ++i) {
        std::int64_t at;
        if (find_row(i, at)) *reinterpret_cast<Quad*>(p.partial + (at + column)) = read(i);
      }
      continue;
    }
    const QuadColumn<T> quads(p, column);
    if (p.epilogue == Epilogue::none) {
      bool has[4];
      std::int64_t at[4];
      Quad v[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) has[i] = find_row(i, at[i]), v[i] = read(i);
      quads.template finish<4, false>(has, at, v);
    } else {
#pragma unroll 1
      for (int i = 0; i < 4; ++i) {
        std::int64_t at[1];
        const bool has[1] = {find_row(i, at[0])};
        Quad v[1] = {read(i)};
        quads.template finish<1, true>(has, at, v);
      }
    }
  }
}

/// The maps describe A in boxes of 64 of k by 128 rows, or of 64 rows by 64 of k, and B likewise with 256
/// columns. k is at least 1.
template <class T, bool kAAlongK, bool kBAlongK>
__global__ void __launch_bounds__(WgmmaTile::kThreads, 1)
    gemm_wgmma(const __grid_constant__ GemmPlan<T> p, const __grid_constant__ ptx::TensorMapBytes map_a,
               const __grid_constant__ ptx::TensorMapBytes map_b) {
  using Tile = WgmmaTile;
  constexpr int kStages = Tile::kStages, kDepth = Tile::kDepth;
  extern __shared__ __align__(1024) unsigned char tapestry_wgmma_shared[];
  auto& shared = *reinterpret_cast<WgmmaShared<T>*>(tapestry_wgmma_shared);
  const int warpgroup = static_cast<int>(threadIdx.x) / 128, warp = static_cast<int>(threadIdx.x) / 32;
  const unsigned tiles = p.m_tiles * p.n_tiles * p.splits * p.batch;

  if (threadIdx.x == 0) {
#pragma unroll
    for (int i = 0; i < kStages; ++i) {
      ptx::barrier_init(&shared.full[i], 1);
      ptx::barrier_init(&shared.empty[i], 8);  // one arrival per multiplying warp
    }
    ptx::fence_barrier_init();
  }
  __syncthreads();
  StageOfRing<kStages> at;

  if (warpgroup == 0) {
    ptx::give_registers<40>();
    if (threadIdx.x != 0) return;
    ptx::prefetch_map(&map_a);
    ptx::prefetch_map(&map_b);
    for (unsigned tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
      const GemmBlock block = gemm_block<Tile>(p, tile);
      const int matrix = static_cast<int>(block.batch), row = static_cast<int>(block.row);
      const int column = static_cast<int>(block.column);
      const int end = static_cast<int>(std::min(p.k, (block.split + 1) * p.k_split));
      // Beyond k, TMA writes zeros. Splits are multiples of a stage's depth, so only the last one reaches
      // there.
      for (int k = static_cast<int>(block.split * p.k_split); k < end; k += kDepth) {
        ptx::barrier_wait(&shared.empty[at.stage], at.parity ^ 1);
        std::uint64_t* const full = &shared.full[at.stage];
        ptx::barrier_arrive_expect(full, (Tile::kM + Tile::kN) * kDepth * static_cast<int>(sizeof(T)));
        copy_tile<Tile::kM, kAAlongK>(shared.a[at.stage], map_a, row, k,
                                      p.batch_ndim && p.a_batch[0] ? matrix : 0, full);
        copy_tile<Tile::kN, kBAlongK>(shared.b[at.stage], map_b, column, k,
                                      p.batch_ndim && p.b_batch[0] ? matrix : 0, full);
        at.advance();
      }
    }
    return;
  }

  ptx::take_registers<232>();
  // 64 lines across k, or 64 rows along k, of 64 elements each.
  constexpr int kBoxBytes = 64 * kDepth * static_cast<int>(sizeof(T));
  constexpr int kStepA = kAAlongK ? 32 : 2048, kStepB = kBAlongK ? 32 : 2048;  // bytes per 16 of k
  const auto release = [&](int stage) {
    if (threadIdx.x % 32 == 0) ptx::barrier_arrive(&shared.empty[stage]);
  };
  float sums[128];
  for (unsigned tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    GemmBlock block = gemm_block<Tile>(p, tile);
    const std::int64_t depth = std::min(p.k - block.split * p.k_split, p.k_split);
    int previous = -1;  // the stage that the wgmma in flight read
    for (std::int64_t k = 0; k < depth; k += kDepth) {
      ptx::barrier_wait(&shared.full[at.stage], at.parity);
      const T* const a = shared.a[at.stage] + (warpgroup - 1) * 64 * kDepth;
      const std::uint64_t of_a = ptx::matrix_descriptor(a, kBoxBytes);
      const std::uint64_t of_b = ptx::matrix_descriptor(shared.b[at.stage], kBoxBytes);
      ptx::keep_sums(sums);
      ptx::wgmma_fence();
#pragma unroll
      for (int step = 0; step < kDepth / 16; ++step) {
        ptx::wgmma_m64n256k16_bf16<!kAAlongK, !kBAlongK>(sums, of_a + step * (kStepA / 16),
                                                         of_b + step * (kStepB / 16), k > 0 || step > 0);
      }
      ptx::wgmma_commit();
      ptx::keep_sums(sums);
      ptx::wgmma_wait<1>();
      if (previous >= 0) release(previous);
      previous = at.stage;
      at.advance();
    }
    ptx::wgmma_wait<0>();
    ptx::keep_sums(sums);
    release(previous);
    block.c = batch_offsets(p, block.batch).c;
    finish_wgmma_tile(p, block, block.row + (warp - 4) * 16, sums, shared.sums[warp - 4]);
  }
}

inline constexpr int kAddThreads = 256;

/// Split-K: adds the partial sums in order of k, then applies the epilogue. A thread handles one quad of C.
template <class T>
__global__ void __launch_bounds__(kAddThreads) add_wgmma_splits(GemmPlan<T> p) {
  const std::int64_t across = p.partial_row / 4, rows = p.batch * p.m;
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * kAddThreads + threadIdx.x;
  if (index >= rows * across) return;
  const std::int64_t row = index / across, column = (index - row * across) * 4;
  const float* from = p.partial + row * p.partial_row + column;
  Quad sums[1] = {*reinterpret_cast<const Quad*>(from)};
  for (unsigned split = 1; split < p.splits; ++split) {
    from += rows * p.partial_row;
    const Quad part = *reinterpret_cast<const Quad*>(from);
    apply(Formula<Add>{}, sums[0].v, part.v);
  }
  const std::int64_t matrix = row / p.m;
  const std::int64_t c = batch_offsets(p, static_cast<unsigned>(matrix)).c;
  const bool has[1] = {true};
  const std::int64_t at[1] = {c + (row - matrix * p.m) * p.c_row};
  QuadColumn<T>(p, column).template finish<1, true>(has, at, sums);
}

}  // namespace tapestry::kernels::cuda
