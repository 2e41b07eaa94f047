#pragma once
// C = A B in bf16 or f16 on tensor cores (mma.sync m16n8k16) with f32 accumulators, for operands whose lines
// begin at multiples of 16 bytes; matmul_ragged.cuh takes the others. Warp tiles are 64 x 64 or 32 x 32.
// Threadblock tiles of A and B pass through a ring of kStages stages in shared memory, filled by cp.async.
// Fragments are double-buffered in registers: ldmatrix for the next 16 of k overlaps the mma of the current
// 16, also across tiles.
#include "tapestry/kernels/cuda/matmul_plan.cuh"
#include "tapestry/kernels/cuda/mma.cuh"

namespace tapestry::kernels::cuda {

/// 255 registers per thread and 96 KiB of shared memory: one block per SM.
struct LargeTileBf16 {
  static constexpr int kM = 128, kN = 256, kDepth = 32, kWarpsM = 2, kWarpsN = 4, kThreads = 256, kBlocks = 1;
  static constexpr int kStages = 4, kSlicePad = 8, kFinishRows = 4;
  static constexpr double kFmasPerClock = 1100, kOverheadClocks = 2500;  // for gemm_clocks(): estimates
};
/// 128 registers per thread and 32 KiB of shared memory: four blocks per SM.
struct SmallTileBf16 {
  static constexpr int kM = 64, kN = 64, kDepth = 32, kWarpsM = 2, kWarpsN = 2, kThreads = 128, kBlocks = 4;
  static constexpr int kStages = 4, kSlicePad = 8, kFinishRows = 4;
  static constexpr double kFmasPerClock = 500, kOverheadClocks = 1000;
};

/// An operand tile of a 16-bit type in shared memory: chunks of 8 elements (16 bytes) that are contiguous
/// along k or across it, as in global memory. Chunks are swizzled by XOR, so that the 8 rows of an ldmatrix
/// matrix, and 8 chunks that are stored together, lie in different banks.
template <int kLines, bool kAlongK>
struct TileBf16 {
  static constexpr int kSize = kLines * 32;
  /// Offset of the chunk that contains (line, k), in elements.
  __device__ static __forceinline__ int chunk(int line, int k) {
    if (kAlongK) return 8 * (line * 4 + ((k / 8) ^ (line / 2 % 4)));
    return 8 * (k * (kLines / 8) + ((line / 8) ^ (k % 8)));
  }
};

/// Loads the fragments that one lane passes to mma. One ldmatrix.x4 loads 16 x 16 elements, which are four 8
/// x 8 matrices. mma needs the matrices of A ordered by lines first (kByLines), and those of B by k first.
template <int kLines, bool kAlongK, bool kByLines>
struct FragmentsBf16 {
  int at;  // offset of this lane's row in the warp's first 16 x 16
  __device__ __forceinline__ explicit FragmentsBf16(int warp_line) {
    const int lane = static_cast<int>(threadIdx.x) % 32, row = lane % 8;
    const int low = lane / 8 % 2 * 8, high = lane / 16 * 8;
    const int line = warp_line + (kByLines ? low : high), k = kByLines ? high : low;
    at = TileBf16<kLines, kAlongK>::chunk(line + (kAlongK ? row : 0), k + (kAlongK ? 0 : row));
  }
  /// Reads the fragments of the warp's i-th group of 16 lines, at the step-th group of 16 along k. The
  /// address equals chunk() of that position, but is computed from `at` by one XOR and one addition. In one
  /// direction the swizzle has a period of 8, so a move by 16 adds a constant. In the other direction a move
  /// by 16 flips bits of the chunk's index, and flipping them before or after the swizzle's XOR gives the
  /// same result.
  template <class T>
  __device__ __forceinline__ void read(const T* tile, int i, int step, std::uint32_t (&r)[4]) const {
    read_at(at, tile, i, step, r);
  }
  template <class T>
  __device__ static __forceinline__ void read_at(int at, const T* tile, int i, int step,
                                                 std::uint32_t (&r)[4]) {
    if (kAlongK) ptx::ldmatrix_x4(r, tile + ((at ^ 16 * step) + 512 * i));
    else ptx::ldmatrix_x4_trans(r, tile + ((at ^ 16 * i) + 16 * kLines * step));
  }
};

/// A warp's sums += the product of its fragments for 16 of k.
template <class T, int kRows, int kColumns>
__device__ __forceinline__ void multiply_fragments(float (&sums)[kRows][kColumns][4],
                                                   const std::uint32_t (&a)[kRows][4],
                                                   const std::uint32_t (&b)[kColumns / 2][4]) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      const std::uint32_t* const half = &b[j / 2][j % 2 * 2];
      mma_m16n8k16<T>(sums[i][j], a[i], {half[0], half[1]});
    }
  }
}

/// The sum of one line of A's tile over its 32 of k.
template <int kLines, bool kAlongK, class T>
__device__ __forceinline__ float sum_of_line(const T* tile, int line) {
  using Layout = TileBf16<kLines, kAlongK>;
  float sum = 0;
#pragma unroll 1
  for (int k = 0; k < 32; k += 8) {
    if constexpr (kAlongK) {
      const auto pack = *reinterpret_cast<const Pack<T, 8>*>(tile + Layout::chunk(line, k));
#pragma unroll
      for (int i = 0; i < 8; ++i) sum += load(pack.v[i]);
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i) sum += load(tile[Layout::chunk(line, k + i) + line % 8]);
    }
  }
  return sum;
}

/// Writes a warp's sums of one slice (finish_tile()) to shared memory.
template <class Tile, int kRows, int kColumns>
__device__ __forceinline__ void write_slice_of(float* slices, int slice, int warp_m, int warp_n,
                                               const float (&sums)[kRows][kColumns][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float* const to =
      slices + (warp_m * 32 + lane / 4) * kSlicePitch<Tile> + warp_n * (8 * kColumns) + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    if (i / 2 != slice) continue;  // registers cannot be indexed at run time
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float* const row = to + (i % 2 * 16 + half * 8) * kSlicePitch<Tile>;
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        const Pack<float, 2> two{{sums[i][j][2 * half], sums[i][j][2 * half + 1]}};
        *reinterpret_cast<Pack<float, 2>*>(row + 8 * j) = two;
      }
    }
  }
}

/// Both operands are loaded as aligned 16-byte chunks by cp.async. T is BFloat16 or Half.
template <class Tile, class T, bool kAAlongK, bool kBAlongK>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks) gemm_16_bit(GemmPlan<T> p) {
  constexpr int kM = Tile::kM, kN = Tile::kN, kDepth = Tile::kDepth, kThreads = Tile::kThreads;
  constexpr int kStages = Tile::kStages, kSteps = kDepth / 16;
  constexpr int kWarpM = kM / Tile::kWarpsM, kWarpN = kN / Tile::kWarpsN;
  static_assert(kDepth == 32 && kSteps == 2, "two sets of operands, in turn");
  using TileA = TileBf16<kM, kAAlongK>;
  using TileB = TileBf16<kN, kBAlongK>;
  constexpr int kStage = TileA::kSize + TileB::kSize;
  extern __shared__ __align__(16) unsigned char dynamic_shared[];
  T* const shared = reinterpret_cast<T*>(dynamic_shared);

  __shared__ GemmBlock shared_block;  // read by the epilogue
  __shared__ float row_sums[kM];      // in registers they would be live during the whole mainloop
  GemmBlock block = gemm_block<Tile>(p);
  const BatchOffsets batch = batch_offsets(p, block.batch);
  block.c = batch.c;
  if (threadIdx.x == 0) shared_block = block;
  const KRange range = k_range<kDepth>(p, block.split);
  TileIterator<T, kM, kDepth, kThreads, 8, kAAlongK> iter_a(p.a + batch.a, p.a_pitch, block.row, p.m,
                                                            range.begin);
  TileIterator<T, kN, kDepth, kThreads, 8, kBAlongK> iter_b(p.b + batch.b, p.b_pitch, block.column, p.n,
                                                            range.begin);

  const auto fetch_operand = [&]<class Layout>(auto& iter, T* tile, int depth) {
    const int to = Layout::chunk(iter.line(0), iter.k(0));
#pragma unroll
    for (int i = 0; i < iter.kPacks; ++i) {
      const bool has_k = depth == kDepth || iter.k(i) < depth;
      if (iter.has_line(i)) ptx::cp_async16(tile + (to + i * kThreads * 8), iter.address(i), has_k);
    }
    iter.advance(depth);
  };
  int to_fetch = range.tiles, fetched = 0;  // tiles that remain, and offset of the next stage to fill
  const auto fetch = [&](int depth) {
    if (to_fetch > 0) {
      T* const stage = shared + fetched;
      fetch_operand.template operator()<TileA>(iter_a, stage, depth);
      fetch_operand.template operator()<TileB>(iter_b, stage + TileA::kSize, depth);
    }
    ptx::cp_async_commit();  // one group per tile, also for missing tiles, so that the wait counts stay valid
    fetched = fetched == (kStages - 1) * kStage ? 0 : fetched + kStage;
    --to_fetch;
  };

  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warp_m = warp % Tile::kWarpsM, warp_n = warp / Tile::kWarpsM;
  const FragmentsBf16<kM, kAAlongK, true> fragments_a(warp_m * kWarpM);
  const FragmentsBf16<kN, kBAlongK, false> fragments_b(warp_n * kWarpN);
  std::uint32_t a[2][kWarpM / 16][4], b[2][kWarpN / 16][4];
  float sums[kWarpM / 16][kWarpN / 8][4] = {};
  const auto read = [&](const T* stage, int step, int to) {
#pragma unroll
    for (int i = 0; i < kWarpM / 16; ++i) fragments_a.read(stage, i, step, a[to][i]);
#pragma unroll
    for (int i = 0; i < kWarpN / 16; ++i) fragments_b.read(stage + TileA::kSize, i, step, b[to][i]);
  };
  const auto multiply = [&](int from) { multiply_fragments<T>(sums, a[from], b[from]); };

  fetch(range.first);
#pragma unroll
  for (int i = 1; i < kStages - 1; ++i) fetch(kDepth);
  ptx::cp_async_wait<kStages - 2>();
  __syncthreads();
  if (range.tiles > 0) read(shared, 0, 0);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kM) row_sums[thread] = 0;
  int stage = 0;
  for (int tiles = range.tiles; tiles > 0; --tiles) {
    read(shared + stage, 1, 1);
    fetch(kDepth);  // refills the stage that all warps had finished reading at the last barrier
    multiply(0);
    if (has_row_sums(p, shared_block) && thread < kM)
      row_sums[thread] += sum_of_line<kM, kAAlongK>(shared + stage, thread);
    ptx::cp_async_wait<kStages - 2>();
    __syncthreads();
    stage = stage == (kStages - 1) * kStage ? 0 : stage + kStage;
    if (tiles > 1) read(shared + stage, 0, 0);
    multiply(1);
  }
  ptx::cp_async_wait<0>();
  write_row_sums<Tile>(p, shared_block, row_sums);

  float* const slices = reinterpret_cast<float*>(shared);
  finish_tile<Tile>(p, shared_block, slices,
                    [&](int slice) { write_slice_of<Tile>(slices, slice, warp_m, warp_n, sums); });
}

template <class Tile>
constexpr std::size_t shared_bytes() {
  constexpr std::size_t stages = Tile::kStages * (Tile::kM + Tile::kN) * Tile::kDepth * sizeof(BFloat16);
  return std::max(stages, kSliceFloats<Tile> * sizeof(float));
}

/// Launches the kernel for the operands' layout. Both operands allow 16-byte loads.
template <class Tile, class T>
void launch_gemm_16_bit(const GemmArgs& g, const GemmLayout& layout, std::int64_t splits,
                        const LaunchContext& context) {
  const auto with = [&]<bool kAAlongK, bool kBAlongK>() {
    launch_gemm_plan<Tile>(&gemm_16_bit<Tile, T, kAAlongK, kBAlongK>, gemm_plan<Tile, T>(g, layout, splits),
                           shared_bytes<Tile>(), context);
  };
  if (layout.a_along_k && layout.b_along_k) with.template operator()<true, true>();
  else if (layout.a_along_k) with.template operator()<true, false>();
  else if (layout.b_along_k) with.template operator()<false, true>();
  else with.template operator()<false, false>();
}

}  // namespace tapestry::kernels::cuda
