#pragma once
// Building blocks of the convolutions in bf16 and f16: implicit GEMMs on tensor cores (mma.sync m16n8k16)
// with f32 accumulators. Tiles of both operands pass through a ring of kStages stages in shared memory, which
// cp.async fills. Fragments are double-buffered in registers: ldmatrix for the next 16 of k overlaps the mma
// of the current 16, also across tiles.
//
// A loader has load(T* tile), which issues cp.async for the next kDepth elements of k. It writes every chunk
// of 8 elements of the tile: chunks without data are zeros, since NaN in shared memory would reach the sums.
#include <cstdint>

#include "tapestry/kernels/cuda/conv_plan.cuh"
#include "tapestry/kernels/cuda/mma.cuh"

namespace tapestry::kernels::cuda::conv::tensor_cores {

inline constexpr int kDepth = 32, kStages = 4;
inline constexpr int kChunk = 8;  // elements of 16 bytes

/// A threadblock tile of kRows x kCols, computed by 2 x 2 warps. kBlocks blocks fit on an SM of an H100, with
/// at most 65536 / (kThreads kBlocks) registers per thread. Shared memory delivers 128 bytes per clock. A
/// warp tile of 64 x 64 spends half as long on ldmatrix as on its mma, one of 64 x 32 about as long.
template <int kRows_, int kCols_, int kBlocks_>
struct Tile {
  static constexpr int kRows = kRows_, kCols = kCols_, kBlocks = kBlocks_, kThreads = 128;
  static constexpr int kWarpRows = kRows / 2, kWarpCols = kCols / 2;
  static constexpr int kStage = (kRows + kCols) * kDepth;  // elements
};
using WideTile = Tile<128, 128, 2>;  // 255 registers, 64 KiB of shared memory
using SlimTile = Tile<128, 64, 3>;   // 168 registers, 48 KiB: y and dx with few channels
using FlatTile = Tile<64, 128, 3>;   // 168 registers, 48 KiB: dweight with few channels of y

/// Offset, in elements, of the chunk that contains (line, k) in an operand's tile. Chunks are contiguous
/// along k or across it, as in global memory. They are swizzled by XOR, so that the 8 rows of an ldmatrix
/// matrix, and 8 chunks that are stored together, lie in different banks.
template <int kLines, bool kAlongDepth>
__device__ __forceinline__ int chunk_at(int line, int k) {
  if constexpr (kAlongDepth) return kChunk * (line * (kDepth / kChunk) + ((k / kChunk) ^ (line / 2 % 4)));
  else return kChunk * (k * (kLines / kChunk) + ((line / kChunk) ^ (k % 8)));
}

/// Loads the fragments that one lane passes to mma. One ldmatrix.x4 loads 16 x 16 elements, which are four 8
/// x 8 matrices. mma needs the matrices of A ordered by lines first (kByLines), and those of B by k first.
template <int kLines, bool kAlongDepth, bool kByLines>
struct Fragments {
  int at;  // offset of this lane's row in the warp's first 16 x 16
  __device__ __forceinline__ explicit Fragments(int warp_line) {
    const int lane = static_cast<int>(threadIdx.x) % 32, row = lane % 8;
    const int low = lane / 8 % 2 * 8, high = lane / 16 * 8;
    const int line = warp_line + (kByLines ? low : high), k = kByLines ? high : low;
    at = chunk_at<kLines, kAlongDepth>(line + (kAlongDepth ? row : 0), k + (kAlongDepth ? 0 : row));
  }
  /// Reads the fragments of the warp's i-th group of 16 lines, at the step-th group of 16 along k. The XOR
  /// and the addition give the address of chunk_at(), because a move by 16 either keeps the swizzle or flips
  /// bits of the chunk's index, which may happen before or after the swizzle's XOR.
  template <class T>
  __device__ __forceinline__ void read(const T* tile, int i, int step, std::uint32_t (&r)[4]) const {
    if constexpr (kAlongDepth) ptx::ldmatrix_x4(r, tile + ((at ^ 16 * step) + 16 * kDepth * i));
    else ptx::ldmatrix_x4_trans(r, tile + ((at ^ 16 * i) + 16 * kLines * step));
  }
};

/// How the mainloop waits for the ring. Tests replace it to plant bugs.
struct RingSync {
  /// Waits until the oldest of the kStages - 1 groups in flight has arrived, also those of other threads.
  __device__ static __forceinline__ void wait() {
    ptx::cp_async_wait<kStages - 2>();
    __syncthreads();
  }
};

/// Accumulators: in sums[i][j], lane l has columns 8 j + 2 (l % 4) + {0, 1} of row 16 i + l / 4, then the
/// same columns of the row 8 below.
template <class Tile>
using Sums = float[Tile::kWarpRows / 16][Tile::kWarpCols / 8][4];

/// The mainloop: sums = A B over `steps` steps of kDepth. kAlongDepth: both operands are contiguous along k,
/// otherwise both across it. After it returns, `ring` may be reused after a barrier.
template <class Tile, bool kAlongDepth, class Sync = RingSync, class T, class A, class B>
__device__ __forceinline__ void multiply(A& a, B& b, unsigned steps, T* ring, Sums<Tile>& sums) {
  constexpr int kGroupsA = Tile::kWarpRows / 16, kGroupsB = Tile::kWarpCols / 16;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const Fragments<Tile::kRows, kAlongDepth, true> of_a(warp % 2 * Tile::kWarpRows);
  const Fragments<Tile::kCols, kAlongDepth, false> of_b(warp / 2 * Tile::kWarpCols);
  std::uint32_t x[2][kGroupsA][4], y[2][kGroupsB][4];
#pragma unroll
  for (int i = 0; i < kGroupsA; ++i)
#pragma unroll
    for (int j = 0; j < 2 * kGroupsB; ++j)
#pragma unroll
      for (int u = 0; u < 4; ++u) sums[i][j][u] = 0;
  const auto read = [&](const T* stage, int step, int to) {
#pragma unroll
    for (int i = 0; i < kGroupsA; ++i) of_a.read(stage, i, step, x[to][i]);
#pragma unroll
    for (int j = 0; j < kGroupsB; ++j) of_b.read(stage + Tile::kRows * kDepth, j, step, y[to][j]);
  };
  const auto add_products = [&](int from) {
#pragma unroll
    for (int i = 0; i < kGroupsA; ++i)
#pragma unroll
      for (int j = 0; j < 2 * kGroupsB; ++j) {
        const std::uint32_t* const half = &y[from][j / 2][j % 2 * 2];
        mma_m16n8k16<T>(sums[i][j], x[from][i], {half[0], half[1]});
      }
  };
  constexpr int kLast = (kStages - 1) * Tile::kStage;
  unsigned to_load = steps;
  int next = 0;  // offset of the next stage to fill
  const auto load = [&] {
    if (to_load > 0) {
      a.load(ring + next);
      b.load(ring + next + Tile::kRows * kDepth);
      --to_load;
    }
    ptx::cp_async_commit();  // one group per step, also for missing steps, so that the wait counts stay valid
    next = next == kLast ? 0 : next + Tile::kStage;
  };

#pragma unroll 1
  for (int i = 1; i < kStages; ++i) load();
  Sync::wait();
  if (steps > 0) read(ring, 0, 0);
  int stage = 0;
  for (unsigned left = steps; left > 0; --left) {
    read(ring + stage, 1, 1);
    load();  // refills the stage that all warps had finished reading at the last barrier
    add_products(0);
    Sync::wait();
    stage = stage == kLast ? 0 : stage + Tile::kStage;
    if (left > 1) read(ring + stage, 0, 0);
    add_products(1);
  }
  ptx::cp_async_wait<0>();
}

/// The steps of one split. The first splits get one step more if the steps do not divide evenly.
struct StepRange {
  unsigned first, count;
  __device__ StepRange(unsigned depth, unsigned part, unsigned parts) {
    const unsigned steps = (depth + kDepth - 1) / kDepth, each = steps / parts, rest = steps - each * parts;
    first = part * each + (part < rest ? part : rest);
    count = each + (part < rest);
  }
};

/// The epilogue passes the sums through shared memory in slices: 32 rows of the sums of the upper two warps,
/// and 32 of those of the lower two. This is the distance of a slice's rows in floats. It is larger than a
/// row, so that the stores of a warp hit different banks.
template <class Tile>
inline constexpr int kSlicePitch = Tile::kCols + 8;
/// Dynamic shared memory: the ring, whose memory the epilogue's slices reuse. It is more than 48 KiB, because
/// launch() raises the limit only then, and the kernels have static shared memory, too.
template <class Tile>
inline constexpr std::size_t kSharedBytes = std::max<std::size_t>({kStages * Tile::kStage * sizeof(BFloat16),
                                                                   64 * kSlicePitch<Tile> * sizeof(float),
                                                                   (std::size_t{48} << 10) + 16});

/// Passes a block's sums through shared memory, so that whole rows can be stored by vectors. Calls
/// write(row, v) with 8 adjacent columns of the tile's row, starting at slice_column().
template <class Tile>
__device__ __forceinline__ int slice_column() {
  return static_cast<int>(threadIdx.x) % (Tile::kCols / kChunk) * kChunk;
}
template <class Tile, class Write>
__device__ __forceinline__ void for_rows(const Sums<Tile>& sums, float* slice, const Write& write) {
  constexpr int kSlices = Tile::kWarpRows / 32, kAcross = Tile::kCols / kChunk;
  constexpr int kStep = Tile::kThreads / kAcross, kPitch = kSlicePitch<Tile>;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  float* const to = slice + (warp % 2 * 32 + lane / 4) * kPitch + warp / 2 * Tile::kWarpCols + lane % 4 * 2;
#pragma unroll 1
  for (int s = 0; s < kSlices; ++s) {
    __syncthreads();  // the previous contents have been read
#pragma unroll
    for (int i = 0; i < Tile::kWarpRows / 16; ++i) {
      if (i / 2 != s) continue;  // registers cannot be indexed at run time
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int j = 0; j < Tile::kWarpCols / 8; ++j) {
          const Pack<float, 2> two{{sums[i][j][2 * half], sums[i][j][2 * half + 1]}};
          *reinterpret_cast<Pack<float, 2>*>(to + (i % 2 * 16 + half * 8) * kPitch + 8 * j) = two;
        }
    }
    __syncthreads();
#pragma unroll 1
    for (int r = thread / kAcross; r < 64; r += kStep) {
      Pack<float, 4> v[2];
#pragma unroll
      for (int u = 0; u < 2; ++u)
        v[u] = *reinterpret_cast<const Pack<float, 4>*>(slice + r * kPitch + slice_column<Tile>() + 4 * u);
      write(r / 32 * Tile::kWarpRows + s * 32 + r % 32, v);
    }
  }
}

// ---- choice of tile and split

/// How a launch is divided. Tests set it; otherwise plan_launch() does.
struct Division {
  bool wide = true;        // WideTile
  std::int64_t parts = 0;  // k splits; 0 means that this and the tile are chosen
  std::int64_t max_pixels = 0x7fffffff;
};

/// Chooses the number of k splits with the fewest estimated clocks of an H100. It depends only on the shape,
/// so results have the same bits on every GPU. `steps` is the number of k steps of a block.
template <class Tile>
std::int64_t choose_parts(std::int64_t blocks, std::int64_t steps, std::int64_t outputs, bool always_adds) {
  constexpr std::int64_t kPlaces = std::int64_t{kMultiprocessors} * Tile::kBlocks;
  constexpr double kStepClocks = Tile::kRows * Tile::kCols * kDepth / 1000.0 * Tile::kBlocks;
  constexpr double kBytesPerClock = 2400;  // memory bandwidth of the whole GPU
  std::int64_t best = 1;
  double fewest = 0;
  for (std::int64_t waves = 0; waves <= 4; ++waves) {
    const std::int64_t parts = std::clamp<std::int64_t>(waves * kPlaces / std::max<std::int64_t>(blocks, 1),
                                                        1, std::max<std::int64_t>(steps / 4, 1));
    double clocks = static_cast<double>(ceil_div(blocks * parts, kPlaces)) *
                    (static_cast<double>(ceil_div(steps, parts)) * kStepClocks + 3000);
    if (parts > 1 || always_adds)
      clocks += 4000 + 8.0 * static_cast<double>(parts * outputs) / kBytesPerClock;
    if (fewest != 0 && clocks >= fewest) continue;
    fewest = clocks;
    best = parts;
  }
  return best;
}

}  // namespace tapestry::kernels::cuda::conv::tensor_cores
