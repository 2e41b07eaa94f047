#pragma once
// Building blocks of the implicit GEMM convolutions (f32): C (rows, cols) = A (rows, depth) B (depth, cols),
// where A and B need not exist as matrices. Loaders fetch tiles of the operands from the tensors. This file
// has the threadblock tiles, the mainloop, the split-K reduction, and the choice of tile and split.
//
// "Lines" are the rows of A or the columns of B. A tile in shared memory is [kDepth][lines + 4]. The padding
// of 4 floats avoids bank conflicts: lanes that store 8 elements along k for 4 lines, or 2 quads for 16
// lines, hit 32 banks.
//
// A loader has
//   Loader(...)            positioned at its first k step
//   load(float* tile)      issues the loads of the next kDepth elements of k, into registers or by cp.async
//                          into the tile; there must be a barrier between two calls
//   store(float* tile)     completes the tile; other threads see it after the next barrier
// Past the end of k a loader yields zeros for both operands, because NaN there would reach the sums. Past the
// last line it repeats a valid line, whose sums are not stored.
#include <algorithm>
#include <cstdint>
#include <limits>

#include "tapestry/kernels/cuda/map.cuh"

namespace tapestry::kernels::cuda::conv {

inline constexpr int kDepth = 8;
/// The number of SMs that grids are sized for (H100). It is a constant, so that the order of additions, and
/// therefore every bit of the result, is the same on all GPUs.
inline constexpr int kMultiprocessors = 132;

using Quad = Pack<float, 4>;

/// A threadblock tile of kRows x kCols. Warp tiles are kWarpRows x kWarpCols, thread tiles kThreadRows x
/// kThreadCols. Thread tiles consist of quads: adjacent lanes read 64 or 128 contiguous bytes of shared
/// memory, without bank conflicts. kBlocks blocks fit on an SM, with at most 65536 / (kThreads kBlocks)
/// registers per thread.
///
/// Shared memory delivers 32 floats per clock and SM; the FMA units do 128 products per clock. With an 8 x 8
/// thread tile a warp spends as long on loading its 8 + 8 floats per lane as on its FMAs. With 8 x 16 the
/// loads take three quarters of the time of the FMAs. Therefore the large tiles use few threads with many
/// registers.
template <int kRows_, int kCols_, int kWarpRows_, int kWarpCols_, int kThreadCols_, int kBlocks_>
struct Tile {
  static constexpr int kRows = kRows_, kCols = kCols_, kWarpRows = kWarpRows_, kWarpCols = kWarpCols_;
  static constexpr int kThreads = kRows * kCols / (kWarpRows * kWarpCols) * 32, kBlocks = kBlocks_;
  static constexpr int kThreadCols = kThreadCols_, kThreadRows = kWarpRows * kWarpCols / 32 / kThreadCols;
  static_assert(kThreadRows % 4 == 0 && kThreadCols % 4 == 0);
};
using WideTile = Tile<128, 128, 64, 64, 16, 2>;  // 255 registers, 19 KiB of shared memory: 8 warps per SM
using HalfTile = Tile<128, 64, 64, 64, 16, 4>;   // 255 registers, 15 KiB: 8 warps per SM
using SlimTile = Tile<128, 32, 32, 32, 8, 5>;    // 96 registers, 13 KiB: 20 warps per SM
using SmallTile = Tile<64, 64, 32, 64, 8, 8>;    // 128 registers, 10 KiB: 16 warps per SM

/// The position of a thread's sums in the block tile. A thread owns quads of rows starting at row() and quads
/// of columns starting at col(). The quads of one warp's lanes interleave.
template <class Tile>
struct ThreadPlace {
  static constexpr int kWarpsAcross = Tile::kCols / Tile::kWarpCols;
  static constexpr int kLanesAcross = Tile::kWarpCols / Tile::kThreadCols;
  __device__ static int row() {
    const int thread = static_cast<int>(threadIdx.x);
    return thread / 32 / kWarpsAcross * Tile::kWarpRows + thread % 32 / kLanesAcross * 4;
  }
  __device__ static int col() {
    const int thread = static_cast<int>(threadIdx.x);
    return thread / 32 % kWarpsAcross * Tile::kWarpCols + thread % 32 % kLanesAcross * 4;
  }
  /// Offset of the thread's i-th row from row(), and of its j-th column from col().
  __device__ static constexpr int row_at(int i) { return i % 4 + i / 4 * (32 / kLanesAcross * 4); }
  __device__ static constexpr int col_at(int j) { return j % 4 + j / 4 * (kLanesAcross * 4); }
};

/// Mainloop: sum = A B over `steps` steps of kDepth. Shared memory is double-buffered with one barrier per
/// step: the loads of the next step overlap the FMAs of the current step.
template <class Tile, class A, class B>
__device__ __forceinline__ void multiply(A& a, B& b, unsigned steps,
                                         float (&sum)[Tile::kThreadRows][Tile::kThreadCols]) {
  constexpr int kALine = Tile::kRows + 4, kBLine = Tile::kCols + 4;
  __shared__ Quad a_tile[2][kDepth * kALine / 4];
  __shared__ Quad b_tile[2][kDepth * kBLine / 4];
  using At = ThreadPlace<Tile>;
  const int row = At::row(), col = At::col();
#pragma unroll
  for (int i = 0; i < Tile::kThreadRows; ++i)
#pragma unroll
    for (int j = 0; j < Tile::kThreadCols; ++j) sum[i][j] = 0;
  if (steps == 0) return;
  a.load(a_tile[0][0].v);
  b.load(b_tile[0][0].v);
  a.store(a_tile[0][0].v);
  b.store(b_tile[0][0].v);
  __syncthreads();
  for (unsigned step = 0; step < steps; ++step) {
    const bool more = step + 1 < steps;
    float *const a_next = a_tile[(step + 1) % 2][0].v, *const b_next = b_tile[(step + 1) % 2][0].v;
    if (more) {
      a.load(a_next);
      b.load(b_next);
    }
    const Quad* const a_now = a_tile[step % 2] + row / 4;
    const Quad* const b_now = b_tile[step % 2] + col / 4;
#pragma unroll
    for (int k = 0; k < kDepth; ++k) {
      Quad a_quads[Tile::kThreadRows / 4], b_quads[Tile::kThreadCols / 4];
#pragma unroll
      for (int i = 0; i < Tile::kThreadRows / 4; ++i)
        a_quads[i] = a_now[(k * kALine + At::row_at(4 * i)) / 4];
#pragma unroll
      for (int j = 0; j < Tile::kThreadCols / 4; ++j)
        b_quads[j] = b_now[(k * kBLine + At::col_at(4 * j)) / 4];
#pragma unroll
      for (int i = 0; i < Tile::kThreadRows; ++i)
#pragma unroll
        for (int j = 0; j < Tile::kThreadCols; ++j)
          sum[i][j] = fmaf(a_quads[i / 4].v[i % 4], b_quads[j / 4].v[j % 4], sum[i][j]);
    }
    if (more) {
      a.store(a_next);
      b.store(b_next);
      __syncthreads();
    }
  }
}

/// The k steps of one split. The first splits get one step more if the steps do not divide evenly.
struct Steps {
  unsigned first, count;
  __device__ Steps(unsigned depth, unsigned part, unsigned parts) {
    const unsigned steps = (depth + kDepth - 1) / kDepth, each = steps / parts, rest = steps - each * parts;
    first = part * each + (part < rest ? part : rest);
    count = each + (part < rest);
  }
};

// ---- loaders of operands that exist as matrices

struct DenseMatrix {
  const float* data;  // 16-byte aligned
  unsigned line;      // leading dimension in elements, a multiple of 4
  unsigned lines, depth;
};

template <int kLines>
__device__ __forceinline__ void store_along_depth(float* tile, int line, int k, const Quad& quad) {
#pragma unroll
  for (int i = 0; i < 4; ++i) tile[(k + i) * (kLines + 4) + line] = quad.v[i];
}

/// Loader of a matrix whose lines are contiguous in memory (along k). depth must be a multiple of 4.
template <int kLines, int kThreads>
class DenseLines {
 public:
  __device__ DenseLines(const DenseMatrix& m, unsigned first_line, unsigned first_step) {
    const unsigned k = first_step * kDepth + threadIdx.x % 2 * 4;
    left_ = static_cast<int>(m.depth - k);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const unsigned line = first_line + threadIdx.x / 2 + i * (kThreads / 2);
      from_[i] = m.data + static_cast<std::int64_t>(line < m.lines ? line : m.lines - 1) * m.line + k;
    }
  }
  __device__ void load(float*) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      value_[i] = left_ > 0 ? *reinterpret_cast<const Quad*>(from_[i]) : Quad{};
      from_[i] += kDepth;
    }
    left_ -= kDepth;
  }
  __device__ void store(float* tile) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int line = static_cast<int>(threadIdx.x) / 2 + i * (kThreads / 2);
      if (line < kLines)
        store_along_depth<kLines>(tile, line, static_cast<int>(threadIdx.x) % 2 * 4, value_[i]);
    }
  }

 private:
  static constexpr int kCount = (kLines * 2 + kThreads - 1) / kThreads;
  const float* from_[kCount];
  Quad value_[kCount];
  int left_;  // elements of k that remain
};

/// Loader of a matrix in which all lines of one k index are contiguous in memory (across k). The number of
/// lines must be a multiple of 4.
template <int kLines, int kThreads>
class DenseSteps {
 public:
  __device__ DenseSteps(const DenseMatrix& m, unsigned first_line, unsigned first_step) : line_(m.line) {
    const unsigned line = first_line + threadIdx.x % kQuads * 4, k = first_step * kDepth + own_k();
    left_ = static_cast<int>(m.depth - k);
    from_ = m.data + static_cast<std::int64_t>(k) * m.line + (line < m.lines ? line : m.lines - 4);
  }
  __device__ void load(float* tile) {
#pragma unroll
    for (unsigned i = 0; i < kCount; ++i) {
      const unsigned k = own_k() + i * kStep;
      if (k < kDepth)
        ptx::cp_async16(tile + k * (kLines + 4) + threadIdx.x % kQuads * 4,
                        from_ + std::int64_t{i * kStep} * line_, left_ > static_cast<int>(i * kStep));
    }
    ptx::cp_async_commit();
    left_ -= kDepth;
    from_ += std::int64_t{kDepth} * line_;
  }
  __device__ void store(float*) const { ptx::cp_async_wait<0>(); }

 private:
  static constexpr unsigned kQuads = kLines / 4, kStep = kThreads / kQuads;
  static constexpr unsigned kCount = (kDepth + kStep - 1) / kStep;
  __device__ static unsigned own_k() { return threadIdx.x / kQuads; }
  const float* from_;
  int left_;  // elements of k that remain
  unsigned line_;
};

// ---- split-K reduction

inline constexpr int kSumThreads = 256;

/// The split-K reduction. For each output i < size it adds parts[part * pitch + target.from(i)] over all
/// parts and calls target(i, sum). The block is (256 / y, y): y threads share an output. Thread t of them
/// adds the parts t, t + y, t + 2 y, ..., and then the y sums are added. Both orders are fixed, so the result
/// is deterministic.
template <class Target>
__global__ void __launch_bounds__(kSumThreads)
    sum_parts(const float* parts, unsigned count, unsigned size, std::int64_t pitch, Target target) {
  __shared__ float sums[kSumThreads];
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  float sum = 0;
  if (i < size) {
    const unsigned from = target.from(i);
#pragma unroll
    for (unsigned part = threadIdx.y; part < count; part += blockDim.y) sum += parts[part * pitch + from];
  }
  if (blockDim.y > 1) {
    sums[threadIdx.y * blockDim.x + threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y > 0) return;
    for (unsigned y = 1; y < blockDim.y; ++y) sum += sums[y * blockDim.x + threadIdx.x];
  }
  if (i < size) target(i, sum);
}

template <class Target>
void launch_sum_parts(const float* parts, std::int64_t count, std::int64_t size, const Target& target,
                      cudaStream_t stream, std::int64_t pitch = 0) {
  const unsigned across = count <= 8 ? kSumThreads : kSumThreads / 8;
  launch(&sum_parts<Target>, static_cast<unsigned>((size + across - 1) / across),
         {across, kSumThreads / across}, 0, stream, parts, static_cast<unsigned>(count),
         static_cast<unsigned>(size), pitch ? pitch : size, target);
}

/// The lower bound of the epilogue: 0 for ReLU, else -infinity. Without ReLU, max with -infinity replaces a
/// branch per sum.
inline float floor_of(bool relu) { return relu ? 0 : -std::numeric_limits<float>::infinity(); }
__device__ __forceinline__ float epilogue(float sum, float bias, float floor) {
  sum += bias;
  return sum < floor ? floor : sum;  // NaN passes through
}

/// Writes output i with bias and ReLU. The channel of output i is (i / inner) % channels.
struct OutputTarget {
  float* out;
  const float* bias;  // may be null
  float floor;
  Divisor inner, channels;
  __device__ static unsigned from(unsigned i) { return i; }
  __device__ void operator()(unsigned i, float sum) const {
    float offset = 0;
    if (bias) {
      const unsigned rest = inner.divide(i);
      offset = bias[rest - channels.divide(rest) * channels.value];
    }
    out[i] = epilogue(sum, offset, floor);
  }
};

// ---- choice of tile and split

enum class TileKind { wide, half, slim, small };

/// Launch parameters that are normally chosen automatically. Tests set them.
struct Tuning {
  TileKind tile = TileKind::wide;
  std::int64_t parts = 0;                // number of k splits; 0 means that it and the tile are chosen
  std::int64_t max_pixels = 0x7fffffff;  // most pixels per launch, because kernels use 32-bit indices
};

struct TileCost {
  TileKind tile;
  int rows, cols, max_blocks;  // size of the tile, and blocks that fit on an SM
  double speed;                // estimated speed of the mainloop, relative to the wide tile
};
/// The tiles that choose_tuning() compares. The first three are candidates for y and dx, and the last two for
/// weight gradients.
inline constexpr TileCost kTileCosts[] = {{TileKind::slim, 128, 32, 5, 0.75},
                                          {TileKind::half, 128, 64, 4, 0.95},
                                          {TileKind::wide, 128, 128, 2, 1.0},
                                          {TileKind::small, 64, 64, 8, 0.85}};

/// Estimated SM clocks of a launch. Assumes 128 FMAs per clock when two wide tiles are resident on an SM, and
/// 13 bytes of memory traffic per clock and SM.
inline double cycles(const TileCost& tile, double blocks, double steps, std::int64_t parts, double outputs) {
  const double each =
      std::max(1.0, static_cast<double>(static_cast<std::int64_t>(
                        (blocks * static_cast<double>(parts) + kMultiprocessors - 1) / kMultiprocessors)));
  const double sums = tile.rows * tile.cols, at_once = std::min<double>(each, tile.max_blocks) * sums;
  const double speed = tile.speed * std::min(1.0, 0.5 + 0.6 * at_once / (2 * 128 * 128));
  const double block = sums * (steps / static_cast<double>(parts) * kDepth / 128 + 1.0 / 16);
  const double add =
      parts == 1 ? 0 : 3000 + (static_cast<double>(parts) + 1) * outputs * 8 / (13.0 * kMultiprocessors);
  return each * block / speed + add;
}

/// Returns the tile among kTileCosts[begin .. end - 1] and the number of k splits with the lowest estimated
/// cost. It considers no split, and splits that give one to four waves of blocks. `cut(tile)` returns the
/// number of blocks without splits.
template <class Blocks>
Tuning choose_tuning(int begin, int end, const Blocks& cut, double steps, double outputs) {
  Tuning best;
  double least = 0;
  for (int t = begin; t < end; ++t) {
    const TileCost& tile = kTileCosts[t];
    const double blocks = std::max(1.0, static_cast<double>(cut(tile)));
    std::int64_t tried = 0;
    for (int waves = 0; waves <= 4; ++waves) {
      const auto fill =
          static_cast<std::int64_t>(waves * static_cast<double>(tile.max_blocks * kMultiprocessors) / blocks);
      const std::int64_t parts =
          std::max<std::int64_t>(1, std::min(fill, static_cast<std::int64_t>(steps / 16)));
      if (parts == tried) continue;
      tried = parts;
      const double cost = cycles(tile, blocks, steps, parts, outputs);
      if (best.parts != 0 && cost >= least) continue;
      least = cost;
      best.tile = tile.tile;
      best.parts = parts;
    }
  }
  return best;
}

}  // namespace tapestry::kernels::cuda::conv
