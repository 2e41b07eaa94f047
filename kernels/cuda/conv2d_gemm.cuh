#pragma once
// The matrix product under the convolutions (f32): C (rows, cols) = A (rows, depth) B (depth, cols), of which
// no operand need exist as a matrix. A loader fetches a tile's share of an operand from where it lies; the
// loop that multiplies, the sum over parts of a long reduction, and the choice of both are here.
//
// "Lines" are the rows of A or the columns of B. In shared memory a tile is [kDepth][lines + 4]: by the 4
// floats more, lanes that store 8 elements along the reduction for 4 lines, or 2 quads for 16, hit 32 banks.
//
// A loader has
//   Loader(...)            of the first step that it loads
//   load(float* tile)      begins to fetch the next kDepth of the reduction: into registers, or by cp.async
//                          into the tile; a barrier must lie between two calls
//   store(float* tile)     has them in the tile, for whoever meets this thread at the next barrier
// Past the end of the reduction it gives zeros, for both operands: NaN there would reach sums. Past the last
// line it repeats a line, whose sums are not stored.
#include <algorithm>
#include <cstdint>
#include <limits>

#include "tapestry/kernels/cuda/map.cuh"

namespace tapestry::kernels::cuda::conv {

inline constexpr int kDepth = 8;
/// For which the grid is cut. A constant, so that the order of sums, and with it every bit, is the same on
/// all GPUs.
inline constexpr int kProcessors = 132;

using Quad = Pack<float, 4>;

/// Of a block, whose warps have kWarpRows x kWarpCols and whose threads have kThreadRows x kThreadCols sums,
/// in quads: lanes side by side read 64 or 128 bytes in a row, without bank conflicts. kBlocks fit a
/// multiprocessor: at most 65536 / (kThreads kBlocks) registers a thread.
///
/// Shared memory gives a multiprocessor 32 floats a cycle, in which it multiplies 128 times. So a warp waits
/// for its 8 + 8 floats a lane as long as it multiplies them with 8 x 8 sums, and for 8 + 16 three quarters
/// as long with 8 x 16: the large tiles give their registers to few threads.
template <int kRows_, int kCols_, int kWarpRows_, int kWarpCols_, int kThreadCols_, int kBlocks_>
struct Tile {
  static constexpr int kRows = kRows_, kCols = kCols_, kWarpRows = kWarpRows_, kWarpCols = kWarpCols_;
  static constexpr int kThreads = kRows * kCols / (kWarpRows * kWarpCols) * 32, kBlocks = kBlocks_;
  static constexpr int kThreadCols = kThreadCols_, kThreadRows = kWarpRows * kWarpCols / 32 / kThreadCols;
  static_assert(kThreadRows % 4 == 0 && kThreadCols % 4 == 0);
};
using WideTile = Tile<128, 128, 64, 64, 16, 2>;  // 255 registers, 19 KiB: 8 warps a multiprocessor
using HalfTile = Tile<128, 64, 64, 64, 16, 4>;   // 255 registers, 15 KiB: 8 warps
using SlimTile = Tile<128, 32, 32, 32, 8, 5>;    // 96 registers, 13 KiB: 20 warps
using SmallTile = Tile<64, 64, 32, 64, 8, 8>;    // 128 registers, 10 KiB: 16 warps

/// Where a thread's sums are in the tile: quads of rows from row() on, as far apart as the lanes' first quads
/// reach, and of columns likewise.
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
  /// Of the i-th of its rows, the j-th of its columns, from row() and col() on.
  __device__ static constexpr int row_at(int i) { return i % 4 + i / 4 * (32 / kLanesAcross * 4); }
  __device__ static constexpr int col_at(int j) { return j % 4 + j / 4 * (kLanesAcross * 4); }
};

/// sum = the products of `steps` steps. One barrier a step: while the step's tile in shared memory is
/// multiplied, the next one is on its way to the other half.
template <class Tile, class A, class B>
__device__ __forceinline__ void multiply(A& a, B& b, unsigned steps,
                                         float (&sum)[Tile::kThreadRows][Tile::kThreadCols]) {
  constexpr int kALine = Tile::kRows + 4, kBLine = Tile::kCols + 4;
  SHARED(Quad, a_tile, [2][kDepth * kALine / 4]);
  SHARED(Quad, b_tile, [2][kDepth * kBLine / 4]);
  using Place = ThreadPlace<Tile>;
  const int row = Place::row(), col = Place::col();
  UNROLL for (int i = 0; i < Tile::kThreadRows; ++i) UNROLL for (int j = 0; j < Tile::kThreadCols; ++j)
      sum[i][j] = 0;
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
    UNROLL for (int k = 0; k < kDepth; ++k) {
      Quad a_quads[Tile::kThreadRows / 4], b_quads[Tile::kThreadCols / 4];
      UNROLL for (int i = 0; i < Tile::kThreadRows / 4; ++i) a_quads[i] =
          a_now[(k * kALine + Place::row_at(4 * i)) / 4];
      UNROLL for (int j = 0; j < Tile::kThreadCols / 4; ++j) b_quads[j] =
          b_now[(k * kBLine + Place::col_at(4 * j)) / 4];
      UNROLL for (int i = 0; i < Tile::kThreadRows; ++i) UNROLL for (int j = 0; j < Tile::kThreadCols; ++j)
          sum[i][j] = fmaf(a_quads[i / 4].v[i % 4], b_quads[j / 4].v[j % 4], sum[i][j]);
    }
    if (more) {
      a.store(a_next);
      b.store(b_next);
      __syncthreads();
    }
  }
}

/// The steps of one of `parts` parts of a reduction.
struct Steps {
  unsigned first, count;
  __device__ Steps(unsigned depth, unsigned part, unsigned parts) {
    const unsigned steps = (depth + kDepth - 1) / kDepth, each = steps / parts, rest = steps - each * parts;
    first = part * each + (part < rest ? part : rest);
    count = each + (part < rest);
  }
};

// ---- loaders of operands that are matrices

struct DenseMatrix {
  const float* data;  // aligned to 16 bytes
  unsigned line;      // elements from a line to the next, or from a step of the reduction to the next: of 4
  unsigned lines, depth;
};

template <int kLines>
__device__ __forceinline__ void store_along_depth(float* tile, int line, int k, const Quad& quad) {
  UNROLL for (int i = 0; i < 4; ++i) tile[(k + i) * (kLines + 4) + line] = quad.v[i];
}

/// A line's elements lie side by side. depth is a multiple of 4.
template <int kLines, int kThreads>
class DenseLines {
 public:
  __device__ DenseLines(const DenseMatrix& m, unsigned first_line, unsigned first_step) {
    const unsigned k = first_step * kDepth + threadIdx.x % 2 * 4;
    left_ = static_cast<int>(m.depth - k);
    UNROLL for (int i = 0; i < kCount; ++i) {
      const unsigned line = first_line + threadIdx.x / 2 + i * (kThreads / 2);
      from_[i] = m.data + static_cast<std::int64_t>(line < m.lines ? line : m.lines - 1) * m.line + k;
    }
  }
  __device__ void load(float*) {
    UNROLL for (int i = 0; i < kCount; ++i) {
      value_[i] = left_ > 0 ? *reinterpret_cast<const Quad*>(from_[i]) : Quad{};
      from_[i] += kDepth;
    }
    left_ -= kDepth;
  }
  __device__ void store(float* tile) const {
    UNROLL for (int i = 0; i < kCount; ++i) {
      const int line = static_cast<int>(threadIdx.x) / 2 + i * (kThreads / 2);
      if (line < kLines)
        store_along_depth<kLines>(tile, line, static_cast<int>(threadIdx.x) % 2 * 4, value_[i]);
    }
  }

 private:
  static constexpr int kCount = (kLines * 2 + kThreads - 1) / kThreads;
  const float* from_[kCount];
  Quad value_[kCount];
  int left_;  // of the depth
};

/// What belongs to one step of the reduction lies side by side. lines is a multiple of 4.
template <int kLines, int kThreads>
class DenseSteps {
 public:
  __device__ DenseSteps(const DenseMatrix& m, unsigned first_line, unsigned first_step) : line_(m.line) {
    const unsigned line = first_line + threadIdx.x % kQuads * 4, k = first_step * kDepth + own_k();
    left_ = static_cast<int>(m.depth - k);
    from_ = m.data + static_cast<std::int64_t>(k) * m.line + (line < m.lines ? line : m.lines - 4);
  }
  __device__ void load(float* tile) {
    UNROLL for (unsigned i = 0; i < kCount; ++i) {
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
  int left_;  // of the depth
  unsigned line_;
};

// ---- the sum over parts

inline constexpr int kSumThreads = 256;

/// target(i, sum over the parts of parts[part][target.from(i)]). Block (256 / y, y): the y threads of an
/// element take every y-th part, in order, and their sums are added in order.
template <class Target>
__global__ void __launch_bounds__(kSumThreads)
    sum_parts(const float* parts, unsigned count, unsigned size, Target target) {
  SHARED(float, sums, [kSumThreads]);
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  float sum = 0;
  if (i < size) {
    const unsigned from = target.from(i);
    UNROLL for (unsigned part = threadIdx.y; part < count; part += blockDim.y) sum +=
        parts[static_cast<std::int64_t>(part) * size + from];
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
                      cudaStream_t stream) {
  const unsigned across = count <= 8 ? kSumThreads : kSumThreads / 8;
  launch(&sum_parts<Target>, static_cast<unsigned>((size + across - 1) / across),
         {across, kSumThreads / across}, 0, stream, parts, static_cast<unsigned>(count),
         static_cast<unsigned>(size), target);
}

/// ReLU's floor is 0. Without it there is none, rather than a branch at each of many sums.
inline float floor_of(bool relu) { return relu ? 0 : -std::numeric_limits<float>::infinity(); }
__device__ __forceinline__ float epilogue(float sum, float bias, float floor) {
  sum += bias;
  return sum < floor ? floor : sum;  // NaN stays
}

/// The i-th output, whose channel changes every `inner` elements.
struct OutputTarget {
  float* out;
  const float* bias;  // or null
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

// ---- the choice of tile and parts

enum class TileKind { wide, half, slim, small };

/// What launches decide by themselves, and tests for them.
struct Tuning {
  TileKind tile = TileKind::wide;
  std::int64_t parts = 0;                 ///< of the reduction; 0: choose it, and the tile
  std::int64_t most_pixels = 0x7fffffff;  ///< in one launch: what 32 bits number
};

struct TileCost {
  TileKind tile;
  int rows, cols, most_blocks;  // of the tile; most_blocks on a multiprocessor
  double speed;                 // of its inner loop, to that of the wide tile: a guess
};
/// The first three are for pixels by channels, the last two for gradients of weights.
inline constexpr TileCost kTileCosts[] = {{TileKind::slim, 128, 32, 5, 0.75},
                                          {TileKind::half, 128, 64, 4, 0.95},
                                          {TileKind::wide, 128, 128, 2, 1.0},
                                          {TileKind::small, 64, 64, 8, 0.85}};

/// Cycles of a multiprocessor, about: it multiplies 128 times a cycle where the sums of two wide tiles keep
/// it busy, and moves 13 bytes.
inline double cycles(const TileCost& tile, double blocks, double steps, std::int64_t parts, double outputs) {
  const double each =
      std::max(1.0, static_cast<double>(static_cast<std::int64_t>(
                        (blocks * static_cast<double>(parts) + kProcessors - 1) / kProcessors)));
  const double sums = tile.rows * tile.cols, at_once = std::min<double>(each, tile.most_blocks) * sums;
  const double speed = tile.speed * std::min(1.0, 0.5 + 0.6 * at_once / (2 * 128 * 128));
  const double block = sums * (steps / static_cast<double>(parts) * kDepth / 128 + 1.0 / 16);
  const double add =
      parts == 1 ? 0 : 3000 + (static_cast<double>(parts) + 1) * outputs * 8 / (13.0 * kProcessors);
  return each * block / speed + add;
}

/// The cheapest of the tiles [begin, end) of kTileCosts, with as many parts as fill the multiprocessors once,
/// or a few times. `cut(tile)` gives the blocks without parts.
template <class Blocks>
Tuning choose(int begin, int end, const Blocks& cut, double steps, double outputs) {
  Tuning best;
  double least = 0;
  for (int t = begin; t < end; ++t) {
    const TileCost& tile = kTileCosts[t];
    const double blocks = std::max(1.0, static_cast<double>(cut(tile)));
    std::int64_t tried = 0;
    for (int waves = 0; waves <= 4; ++waves) {
      const auto fill =
          static_cast<std::int64_t>(waves * static_cast<double>(tile.most_blocks * kProcessors) / blocks);
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
