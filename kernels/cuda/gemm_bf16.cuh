#pragma once
// C = A B in bf16 on tensor cores, by mma.sync: sums in f32. A warp computes 64 x 64 or 32 x 32 elements from
// tiles of A and B in shared memory, of which kStages are there or on their way (cp.async). The operands of
// the next 16 of k are read from shared memory while those of the last 16 are multiplied, across tiles too.
#include "tapestry/kernels/cuda/gemm_plan.cuh"

namespace tapestry::kernels::cuda {

/// 255 registers a thread, 96 KiB of shared memory: one block on an SM.
struct LargeTileBf16 {
  static constexpr int kM = 128, kN = 256, kDepth = 32, kWarpsM = 2, kWarpsN = 4, kThreads = 256, kBlocks = 1;
  static constexpr int kStages = 4, kSlicePad = 8, kFinishRows = 4;
  static constexpr double kRate = 1100,
                          kLead = 2500;  // for gemm_clocks: products a clock, clocks around them
};
/// 128 registers a thread, 32 KiB of shared memory: four blocks on an SM; two where elements come one by one.
struct SmallTileBf16 {
  static constexpr int kM = 64, kN = 64, kDepth = 32, kWarpsM = 2, kWarpsN = 2, kThreads = 128, kBlocks = 4;
  static constexpr int kStages = 4, kSlicePad = 8, kFinishRows = 4;
  static constexpr double kRate = 500, kLead = 1000;
};

/// A tile of an operand in shared memory: chunks of 8 elements (16 bytes) along k or across it, as in memory.
/// They are permuted so that the eight that a matrix of ldmatrix is read from, and the eight that are written
/// together, lie in different banks.
template <int kLines, bool kAlongK>
struct TileBf16 {
  static constexpr int kSize = kLines * 32;
  /// The chunk of line `line` and of `k`, in elements from the tile's first.
  __device__ static __forceinline__ int chunk(int line, int k) {
    if (kAlongK) return 8 * (line * 4 + ((k / 8) ^ (line / 2 % 4)));
    return 8 * (k * (kLines / 8) + ((line / 8) ^ (k % 8)));
  }
};

/// What a lane reads of a tile: 16 x 16 elements at a time, as four matrices. Those of A are numbered down
/// the lines first (kByLines), those of B along k: so mma wants them.
template <int kLines, bool kAlongK, bool kByLines>
struct FragmentsBf16 {
  int at;  // this lane's row of the warp's first 16 x 16
  __device__ __forceinline__ explicit FragmentsBf16(int warp_line) {
    const int lane = static_cast<int>(threadIdx.x) % 32, row = lane % 8;
    const int low = lane / 8 % 2 * 8, high = lane / 16 * 8;
    const int line = warp_line + (kByLines ? low : high), k = kByLines ? high : low;
    at = TileBf16<kLines, kAlongK>::chunk(line + (kAlongK ? row : 0), k + (kAlongK ? 0 : row));
  }
  /// The `i`th 16 of the warp's lines, the `step`th of the tile's k. (chunk() of those: what is added
  /// changes either the rows, in steps that the permutation does not see, or bits that it only flips.)
  __device__ __forceinline__ void read(const BFloat16* tile, int i, int step, std::uint32_t (&r)[4]) const {
    if (kAlongK) ptx::ldmatrix_x4(r, tile + ((at ^ 16 * step) + 512 * i));
    else ptx::ldmatrix_x4_trans(r, tile + ((at ^ 16 * i) + 16 * kLines * step));
  }
};

/// With kPacks both operands come in aligned chunks, by cp.async; otherwise element by element.
template <class Tile, bool kPacks, bool kAAlongK, bool kBAlongK>
__global__ void __launch_bounds__(Tile::kThreads, kPacks ? Tile::kBlocks : 2)
    gemm_bf16(GemmPlan<BFloat16> p) {
  constexpr int kM = Tile::kM, kN = Tile::kN, kDepth = Tile::kDepth, kThreads = Tile::kThreads;
  constexpr int kStages = Tile::kStages, kSteps = kDepth / 16;
  constexpr int kWarpM = kM / Tile::kWarpsM, kWarpN = kN / Tile::kWarpsN;
  static_assert(kDepth == 32 && kSteps == 2, "two sets of operands, in turn");
  using TileA = TileBf16<kM, kAAlongK>;
  using TileB = TileBf16<kN, kBAlongK>;
  constexpr int kStage = TileA::kSize + TileB::kSize;
  DYN_SHARED(BFloat16, shared);

  SHARED(GemmBlock, kept, );  // for the end
  GemmBlock block = gemm_block<Tile>(p);
  const BatchOffsets batch = batch_offsets(p, block.batch);
  block.c = batch.c;
  if (threadIdx.x == 0) kept = block;
  const KRange range = k_range<kDepth>(p, block.split);
  constexpr int V = kPacks ? 8 : 1;
  TileWalk<BFloat16, kM, kDepth, kThreads, V, kAAlongK> walk_a(p.a + batch.a, p.a_pitch, block.row, p.m,
                                                               range.begin);
  TileWalk<BFloat16, kN, kDepth, kThreads, V, kBAlongK> walk_b(p.b + batch.b, p.b_pitch, block.column, p.n,
                                                               range.begin);

  const auto fetch_operand = [&]<class Layout, bool kAlongK>(auto& walk, BFloat16* tile, int depth) {
    const int to = Layout::chunk(walk.line(0), walk.k(0));
    UNROLL for (int i = 0; i < walk.kPacks; ++i) {
      const bool has_k = depth == kDepth || walk.k(i) < depth;
      if constexpr (kPacks) {
        if (walk.has_line(i)) ptx::cp_async16(tile + (to + i * kThreads * 8), walk.address(i), has_k);
      } else {
        const int line = walk.line(i), k = walk.k(i);
        tile[Layout::chunk(line, k) + (kAlongK ? k : line) % 8] =
            walk.has_line(i) && has_k ? *walk.address(i) : BFloat16();
      }
    }
    walk.advance(depth);
  };
  int to_fetch = range.tiles, fetched = 0;  // tiles, and where the next one goes
  const auto fetch = [&](int depth) {
    if (to_fetch > 0) {
      BFloat16* const stage = shared + fetched;
      fetch_operand.template operator()<TileA, kAAlongK>(walk_a, stage, depth);
      fetch_operand.template operator()<TileB, kBAlongK>(walk_b, stage + TileA::kSize, depth);
    }
    ptx::cp_async_commit();  // a group a tile, also where there is none
    fetched = fetched == (kStages - 1) * kStage ? 0 : fetched + kStage;
    --to_fetch;
  };

  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int warp_m = warp % Tile::kWarpsM, warp_n = warp / Tile::kWarpsM;
  const FragmentsBf16<kM, kAAlongK, true> fragments_a(warp_m * kWarpM);
  const FragmentsBf16<kN, kBAlongK, false> fragments_b(warp_n * kWarpN);
  std::uint32_t a[2][kWarpM / 16][4], b[2][kWarpN / 16][4];
  float sums[kWarpM / 16][kWarpN / 8][4] = {};
  const auto read = [&](const BFloat16* stage, int step, int to) {
    UNROLL for (int i = 0; i < kWarpM / 16; ++i) fragments_a.read(stage, i, step, a[to][i]);
    UNROLL for (int i = 0; i < kWarpN / 16; ++i) fragments_b.read(stage + TileA::kSize, i, step, b[to][i]);
  };
  const auto multiply = [&](int from) {
    UNROLL for (int i = 0; i < kWarpM / 16; ++i) {
      UNROLL for (int j = 0; j < kWarpN / 8; ++j) {
        const std::uint32_t* const half = &b[from][j / 2][j % 2 * 2];
        ptx::mma_m16n8k16_bf16(sums[i][j], a[from][i], {half[0], half[1]});
      }
    }
  };

  fetch(range.first);
  UNROLL for (int i = 1; i < kStages - 1; ++i) fetch(kDepth);
  ptx::cp_async_wait<kStages - 2>();
  __syncthreads();
  if (range.tiles > 0) read(shared, 0, 0);
  int stage = 0;
  for (int tiles = range.tiles; tiles > 0; --tiles) {
    read(shared + stage, 1, 1);
    fetch(kDepth);  // into the stage before this one, which no warp reads since the last barrier
    multiply(0);
    ptx::cp_async_wait<kStages - 2>();
    __syncthreads();
    stage = stage == (kStages - 1) * kStage ? 0 : stage + kStage;
    if (tiles > 1) read(shared + stage, 0, 0);
    multiply(1);
  }
  ptx::cp_async_wait<0>();

  float* const slices = reinterpret_cast<float*>(shared);
  finish_tile<Tile>(p, kept, slices, [&](int slice) {
    float* const to = slices + (warp_m * 32 + lane / 4) * kSlicePitch<Tile> + warp_n * kWarpN + lane % 4 * 2;
    UNROLL for (int i = 0; i < kWarpM / 16; ++i) {
      if (i / 2 != slice) continue;  // a register has no number at run time
      UNROLL for (int half = 0; half < 2; ++half) {
        float* const row = to + (i % 2 * 16 + half * 8) * kSlicePitch<Tile>;
        UNROLL for (int j = 0; j < kWarpN / 8; ++j) {
          const Pack<float, 2> two{{sums[i][j][2 * half], sums[i][j][2 * half + 1]}};
          *reinterpret_cast<Pack<float, 2>*>(row + 8 * j) = two;
        }
      }
    }
  });
}

template <class Tile>
constexpr std::size_t shared_bytes() {
  constexpr std::size_t stages = Tile::kStages * (Tile::kM + Tile::kN) * Tile::kDepth * sizeof(BFloat16);
  return std::max(stages, kSliceFloats<Tile> * sizeof(float));
}

/// With kElements the kernels that need no alignment are there too.
template <class Tile, bool kElements>
void launch_gemm_bf16(const Gemm& g, const GemmLayout& layout, std::int64_t splits, cudaStream_t stream) {
  const auto with = [&]<bool kAAlongK, bool kBAlongK>() {
    void (*kernel)(GemmPlan<BFloat16>) = &gemm_bf16<Tile, true, kAAlongK, kBAlongK>;
    if constexpr (kElements)
      if (!layout.packs) kernel = &gemm_bf16<Tile, false, kAAlongK, kBAlongK>;
    launch_gemm_plan<Tile>(kernel, gemm_plan<Tile, BFloat16>(g, layout, splits), shared_bytes<Tile>(),
                           g.device, stream);
  };
  if (layout.a_along_k && layout.b_along_k) with.template operator()<true, true>();
  else if (layout.a_along_k) with.template operator()<true, false>();
  else if (layout.b_along_k) with.template operator()<false, true>();
  else with.template operator()<false, false>();
}

}  // namespace tapestry::kernels::cuda
