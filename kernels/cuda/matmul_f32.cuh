#pragma once
// C = A B in f32 (FFMA). Warp tiles are 64 x 64 or 32 x 32, thread tiles 8 x 16 or 4 x 8 in registers. Shared
// memory is double-buffered: the global loads of the next tile of A and B overlap the FMAs of the current
// one.
#include "tapestry/kernels/cuda/matmul_plan.cuh"

namespace tapestry::kernels::cuda {

/// Up to 255 registers per thread: two blocks, 8 warps per SM. An 8 x 16 thread tile needs three quarters of
/// the shared-memory traffic of two 8 x 8 tiles, and has fewer register bank conflicts.
struct LargeTileF32 {
  static constexpr int kM = 128, kN = 128, kDepth = 8, kWarpsM = 2, kThreads = 128, kBlocks = 2;
  static constexpr int kSlicePad = 4, kFinishRows = 2;
  static constexpr double kFmasPerClock = 110, kOverheadClocks = 1500;  // for gemm_clocks(): estimates
};
/// 96 registers per thread: five blocks, 20 warps per SM.
struct SmallTileF32 {
  static constexpr int kM = 64, kN = 64, kDepth = 8, kWarpsM = 2, kThreads = 128, kBlocks = 5;
  static constexpr int kSlicePad = 4, kFinishRows = 4;
  static constexpr double kFmasPerClock = 80, kOverheadClocks = 700;
};

/// A and B are loaded as aligned packs of V elements.
template <class Tile, int V, bool kAAlongK, bool kBAlongK>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks) gemm_f32(GemmPlan<float> p) {
  constexpr int kM = Tile::kM, kN = Tile::kN, kDepth = Tile::kDepth, kThreads = Tile::kThreads;
  constexpr int kWarpsN = kThreads / 32 / Tile::kWarpsM;
  constexpr int kQuadsM = kM / (32 * Tile::kWarpsM), kQuadsN = kN / (16 * kWarpsN);  // quads per thread
  static_assert(kQuadsM * kQuadsN * 16 * kThreads == kM * kN);
  // Tiles in shared memory are [k][line]. Padding rows by four floats avoids bank conflicts for stores of
  // packs along k (bank 4 k + line), and keeps packs across k aligned.
  constexpr int kPitchA = kM + 4, kPitchB = kN + 4, kStage = kDepth * (kPitchA + kPitchB);
  __shared__ Quad memory[std::max(2 * kStage, kSliceFloats<Tile>) / 4];
  float* const shared = &memory[0].v[0];

  __shared__ GemmBlock shared_block;  // read by the epilogue
  __shared__ float row_sums[kM];      // in registers they would be live during the whole mainloop
  GemmBlock block = gemm_block<Tile>(p);
  const BatchOffsets batch = batch_offsets(p, block.batch);
  block.c = batch.c;
  if (threadIdx.x == 0) shared_block = block;
  const KRange range = k_range<kDepth>(p, block.split);
  using IteratorA = TileIterator<float, kM, kDepth, kThreads, V, kAAlongK>;
  using IteratorB = TileIterator<float, kN, kDepth, kThreads, V, kBAlongK>;
  IteratorA iter_a(p.a + batch.a, p.a_pitch, block.row, p.m, range.begin);
  IteratorB iter_b(p.b + batch.b, p.b_pitch, block.column, p.n, range.begin);

  const auto read = [&](auto& iter, auto& packs, int depth) {
#pragma unroll
    for (int i = 0; i < iter.kPacks; ++i) {
      if (iter.has_line(i) && (depth == kDepth || iter.k(i) < depth))
        packs[i] = *reinterpret_cast<const Pack<float, V>*>(iter.address(i));
    }
    iter.advance(depth);
  };
  const auto write = [&]<bool kAlongK>(const auto& iter, const auto& packs, float* tile, int pitch) {
#pragma unroll
    for (int i = 0; i < iter.kPacks; ++i) {
      float* const to = tile + iter.k(i) * pitch + iter.line(i);
      if constexpr (kAlongK)
#pragma unroll
        for (int j = 0; j < V; ++j) to[j * pitch] = packs[i].v[j];
      else *reinterpret_cast<Pack<float, V>*>(to) = packs[i];
    }
  };
  Pack<float, V> from_a[IteratorA::kPacks] = {}, from_b[IteratorB::kPacks] = {};
  const auto write_both = [&](float* stage) {
    write.template operator()<kAAlongK>(iter_a, from_a, stage, kPitchA);
    write.template operator()<kBAlongK>(iter_b, from_b, stage + kDepth * kPitchA, kPitchB);
  };

  // Lanes are mapped to quads so that no half warp has a bank conflict when it reads them. Eight lanes share
  // each quad of columns, and four lanes share each quad of rows.
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int warp_m = warp % Tile::kWarpsM, warp_n = warp / Tile::kWarpsM;
  const int lane_m = lane / 2 % 8 * 4, lane_n = (lane / 16 * 2 + lane % 2) * 4;
  const int at_m = warp_m * 32 * kQuadsM + lane_m, at_n = warp_n * 16 * kQuadsN + lane_n;
  const auto quad = [](const float* at) { return *reinterpret_cast<const Quad*>(at); };
  float sums[kQuadsM * 4][kQuadsN * 4] = {};

  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kM) row_sums[thread] = 0;
  read(iter_a, from_a, range.first);
  read(iter_b, from_b, range.first);
  write_both(shared);
  __syncthreads();
  int stage = 0;
  const auto multiply = [&] {
    const float* const tile_a = shared + stage + at_m;
    const float* const tile_b = shared + stage + kDepth * kPitchA + at_n;
#pragma unroll
    for (int k = 0; k < kDepth; ++k) {
      Quad a[kQuadsM], b[kQuadsN];
#pragma unroll
      for (int q = 0; q < kQuadsM; ++q) a[q] = quad(tile_a + k * kPitchA + 32 * q);
#pragma unroll
      for (int q = 0; q < kQuadsN; ++q) b[q] = quad(tile_b + k * kPitchB + 16 * q);
#pragma unroll
      for (int i = 0; i < kQuadsM * 4; ++i) {
        const float x = a[i / 4].v[i % 4];
#pragma unroll
        for (int j = 0; j < kQuadsN * 4; ++j) sums[i][j] += x * b[j / 4].v[j % 4];
      }
    }
  };
  const auto add_rows = [&] {
    if (!has_row_sums(p, shared_block) || thread >= kM) return;
    float sum = 0;
#pragma unroll
    for (int k = 0; k < kDepth; ++k) sum += shared[stage + k * kPitchA + thread];
    row_sums[thread] += sum;
  };
  // The last tile is peeled. If the loads of the next tile were conditional, the compiler would hoist the
  // FMAs, which do not depend on the loads, above the loads that they should hide.
  for (int tiles = range.tiles; tiles > 1; --tiles) {
    read(iter_a, from_a, kDepth);
    read(iter_b, from_b, kDepth);
    multiply();
    add_rows();
    stage = kStage - stage;
    write_both(shared + stage);
    __syncthreads();
  }
  if (range.tiles > 0) {
    multiply();
    add_rows();
  }
  write_row_sums<Tile>(p, shared_block, row_sums);

  finish_tile<Tile>(p, shared_block, shared, [&](int slice) {
    float* const to = shared + (warp_m * 32 + lane_m) * kSlicePitch<Tile> + at_n;
#pragma unroll
    for (int q = 0; q < kQuadsM; ++q) {
      if (q != slice) continue;  // registers cannot be indexed at run time
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float(&row)[kQuadsN * 4] = sums[4 * q + i];
#pragma unroll
        for (int j = 0; j < kQuadsN; ++j) {
          const Quad four{{row[4 * j], row[4 * j + 1], row[4 * j + 2], row[4 * j + 3]}};
          *reinterpret_cast<Quad*>(to + i * kSlicePitch<Tile> + 16 * j) = four;
        }
      }
    }
  });
}

template <class Tile>
void launch_gemm_f32(const GemmArgs& g, const GemmLayout& layout, std::int64_t splits,
                     const LaunchContext& context) {
  const auto plan = gemm_plan<Tile, float>(g, layout, splits);
  const auto with = [&](void (*packs)(GemmPlan<float>), void (*elements)(GemmPlan<float>)) {
    launch_gemm_plan<Tile>(layout.packs ? packs : elements, plan, 0, context);
  };
  if (layout.a_along_k && layout.b_along_k)
    with(&gemm_f32<Tile, 4, true, true>, &gemm_f32<Tile, 1, true, true>);
  else if (layout.a_along_k) with(&gemm_f32<Tile, 4, true, false>, &gemm_f32<Tile, 1, true, false>);
  else if (layout.b_along_k) with(&gemm_f32<Tile, 4, false, true>, &gemm_f32<Tile, 1, false, true>);
  else with(&gemm_f32<Tile, 4, false, false>, &gemm_f32<Tile, 1, false, false>);
}

}  // namespace tapestry::kernels::cuda
