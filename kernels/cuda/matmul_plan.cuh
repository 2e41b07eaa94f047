#pragma once
// The common parts of the GEMM kernels in f32 (matmul_f32.cuh), in bf16 and f16 (matmul_bf16.cuh, and
// matmul_ragged.cuh for lines that do not begin at multiples of 16 bytes) and for few rows (matmul_gemv.cuh).
// A block computes a threadblock tile of C over a range of k. TileIterator gives the global addresses of a
// thread's loads. Operands may be contiguous along k or across it, which covers all transpositions. The
// epilogue passes the sums through shared memory, so that whole rows of C are written by coalesced vector
// stores. If there are too few tiles to fill a GPU, k is split (split-K): each split writes its sums to a
// workspace, and the block that is the last of a tile to finish adds them in order.
#include <algorithm>
#include <initializer_list>

#include "tapestry/core/error.h"
#include "tapestry/kernels/cuda/functions.cuh"
#include "tapestry/kernels/cuda/last_block.cuh"
#include "tapestry/kernels/ops/matmul.h"
#include "tapestry/kernels/scratch.h"

namespace tapestry::kernels::cuda {

/// Four elements of a row of C: the unit of a thread's stores.
using Quad = Pack<float, 4>;

/// Kernel parameters of a Gemm.
template <class T>
struct GemmPlan {
  std::int64_t m, n, k;
  const T* a;
  const T* b;
  T* c;
  T* aux;
  const T* bias;
  std::int64_t a_pitch, b_pitch, c_row;  // leading dimensions in elements
  bool accumulate, c_packs;              // c_packs: C, aux and bias allow vectors of four elements
  Epilogue epilogue;
  unsigned batch;
  int batch_ndim;
  unsigned batch_sizes[kMaxDims];
  std::int64_t a_batch[kMaxDims], b_batch[kMaxDims], c_batch[kMaxDims];
  unsigned m_tiles, n_tiles, splits;
  std::int64_t k_split;      // k per split; the last may have less
  float* partial;            // workspace if splits > 1: (splits, batch, m, partial_row)
  std::int64_t partial_row;  // n, rounded up to a multiple of 4
  std::uint32_t* counters;   // one per tile if splits > 1
  T* row_sums;
  float* partial_row_sums;  // workspace if splits > 1 and there are row_sums: (splits, m)
  // Only the kernels of matmul_ragged.cuh read these; other kernels are templates of them.
  bool a_along_k, b_along_k;
  int a_width, b_width;  // elements per load of A and of B
};

/// How a product is computed: the tile size and the number of splits of k, or the gemv kernel.
struct GemmStrategy {
  bool large = false;
  std::int64_t splits = 1;
  bool gemv = false;
};

// ---- tile scheduling

/// First row and column of a block's tile of C, offset of its matrix in C, batch index, and split index.
struct GemmBlock {
  std::int64_t row, column, c;
  unsigned batch, split;
};

/// Threadblock swizzle: consecutive blocks take tiles in groups of 16 tile rows, column by column. So
/// concurrent blocks mostly find their tiles of A and B in L2.
template <class Tile, class T>
__device__ __forceinline__ GemmBlock gemm_block(const GemmPlan<T>& p, unsigned number) {
  constexpr unsigned kGroup = 16;
  const unsigned tiles = p.m_tiles * p.n_tiles, rest = number / tiles, tile = number - rest * tiles;
  const unsigned group = tile / (kGroup * p.n_tiles), first = group * kGroup;
  const unsigned height = std::min(kGroup, p.m_tiles - first), within = tile - first * p.n_tiles;
  GemmBlock block;
  block.row = static_cast<std::int64_t>(first + within % height) * Tile::kM;
  block.column = static_cast<std::int64_t>(within / height) * Tile::kN;
  block.batch = rest / p.splits;
  block.split = rest - block.batch * p.splits;
  return block;
}
template <class Tile, class T>
__device__ __forceinline__ GemmBlock gemm_block(const GemmPlan<T>& p) {
  return gemm_block<Tile>(p, blockIdx.x);
}

struct BatchOffsets {
  std::int64_t a, b, c;
};
template <class T>
__device__ __forceinline__ BatchOffsets batch_offsets(const GemmPlan<T>& p, unsigned index) {
  BatchOffsets at{0, 0, 0};
#pragma unroll 1
  for (int d = p.batch_ndim - 1; d >= 0; --d) {
    const unsigned rest = index / p.batch_sizes[d], own = index - rest * p.batch_sizes[d];
    at.a += own * p.a_batch[d];
    at.b += own * p.b_batch[d];
    at.c += own * p.c_batch[d];
    index = rest;
  }
  return at;
}

// ---- global loads

/// A block's range of k as tiles of kDepth. The first tile is the partial one, so that the others need no
/// predicates along k.
struct KRange {
  std::int64_t begin;
  int tiles, first;  // number of tiles, and depth of the first
};
template <int kDepth, class T>
__device__ __forceinline__ KRange k_range(const GemmPlan<T>& p, unsigned split) {
  KRange range;
  range.begin = split * p.k_split;
  const int size = static_cast<int>(std::min(p.k - range.begin, p.k_split));
  range.tiles = (size + kDepth - 1) / kDepth;
  range.first = range.tiles ? size - (range.tiles - 1) * kDepth : 0;
  return range;
}

/// The packs of V elements that a thread loads from a tile of kLines lines (rows of A, columns of B) by
/// kDepth, and from the following tiles. Adjacent threads load adjacent packs (coalesced). Lines past the end
/// of the operand may be left unread: they only affect elements of C that do not exist.
template <class T, int kLines, int kDepth, int kThreads, int V, bool kAlongK>
struct TileIterator {
  static constexpr int kPacks = kLines * kDepth / (kThreads * V);
  static constexpr int kAcross = (kAlongK ? kDepth : kLines) / V;  // packs per contiguous line
  static constexpr int kStep = kThreads / kAcross;  // contiguous lines from a thread's pack to its next
  static_assert(kPacks * kThreads * V == kLines * kDepth && kStep * kAcross == kThreads);

  const T* at;
  std::int64_t pitch;
  int first_line, first_k, lines;

  __device__ __forceinline__ TileIterator(const T* operand, std::int64_t pitch_, std::int64_t line,
                                          std::int64_t line_count, std::int64_t k)
      : pitch(pitch_) {
    const int thread = static_cast<int>(threadIdx.x), across = thread % kAcross * V, along = thread / kAcross;
    first_line = kAlongK ? along : across;
    first_k = kAlongK ? across : along;
    lines = static_cast<int>(std::min(line_count - line, std::int64_t{kLines}));
    at = operand + (kAlongK ? (line + along) * pitch + (k + across) : (k + along) * pitch + (line + across));
  }
  __device__ __forceinline__ int line(int pack) const { return first_line + (kAlongK ? pack * kStep : 0); }
  __device__ __forceinline__ int k(int pack) const { return first_k + (kAlongK ? 0 : pack * kStep); }
  __device__ __forceinline__ const T* address(int pack) const { return at + pack * (kStep * pitch); }
  /// Whether the line of this pack exists. If it does, the whole pack does.
  __device__ __forceinline__ bool has_line(int pack) const { return line(pack) < lines; }
  /// Moves to the next tile; `depth` is the depth of the current one.
  __device__ __forceinline__ void advance(int depth) { at += kAlongK ? depth : depth * pitch; }
};

// ---- epilogue

template <class F>
__device__ __forceinline__ void apply(F f, float (&v)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] = f(v[i]);
}
template <class F>
__device__ __forceinline__ void apply(F f, float (&v)[4], const float (&at)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] = f(v[i], at[i]);
}

/// Reads four elements of a row, of which `count` exist.
template <class T>
__device__ __forceinline__ void read_quad(const T* from, bool pack, int count, float (&v)[4]) {
  Pack<T, 4> x{};
  if (pack) x = *reinterpret_cast<const Pack<T, 4>*>(from);
  else
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (i < count) x.v[i] = from[i];
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] = load(x.v[i]);
}
template <class T>
__device__ __forceinline__ void write_quad(T* to, bool pack, int count, const float (&v)[4]) {
  Pack<T, 4> x;
#pragma unroll
  for (int i = 0; i < 4; ++i) x.v[i] = store<T>(v[i]);
  if (pack) *reinterpret_cast<Pack<T, 4>*>(to) = x;
  else
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (i < count) to[i] = x.v[i];
}

/// Applies the epilogue to four columns of C at offset `at`, of which `count` exist.
template <class T>
__device__ __forceinline__ void apply_epilogue(const GemmPlan<T>& p, std::int64_t at, int count,
                                               float (&v)[4]) {
  if (p.epilogue == Epilogue::none) return;
  float aux[4];
  if (is_gradient(p.epilogue)) read_quad(p.aux + at, p.c_packs, count, aux);
  else if (p.aux) write_quad(p.aux + at, p.c_packs, count, v);
  switch (p.epilogue) {
    case Epilogue::none:
      break;
    case Epilogue::relu:
      apply(Formula<Relu>{}, v);
      break;
    case Epilogue::gelu:
      apply(Formula<Gelu>{}, v);
      break;
    case Epilogue::gelu_tanh:
      apply(Formula<GeluTanh>{}, v);
      break;
    case Epilogue::relu_backward:
      apply(Formula<GradientOf<Relu>>{}, v, aux);
      break;
    case Epilogue::gelu_backward:
      apply(Formula<GradientOf<Gelu>>{}, v, aux);
      break;
    case Epilogue::gelu_tanh_backward:
      apply(Formula<GradientOf<GeluTanh>>{}, v, aux);
      break;
  }
}

/// Up to four adjacent columns of C, starting at `column`, that one thread finishes.
template <class T>
struct QuadColumn {
  const GemmPlan<T>& p;
  std::int64_t column;
  int count;
  float bias[4] = {};

  __device__ __forceinline__ QuadColumn(const GemmPlan<T>& plan, std::int64_t from)
      : p(plan), column(from), count(static_cast<int>(std::min(p.n - from, std::int64_t{4}))) {
    if (p.bias && count > 0) read_quad(p.bias + column, p.c_packs, count, bias);
  }
  /// Adds the bias (and the old C) to kRows rows of sums, applies the epilogue, and writes the rows to C. Row
  /// i begins at offset at[i] in C, and is skipped unless has[i]. All loads of the old C are issued before
  /// the first store.
  template <int kRows, bool kEpilogue>
  __device__ __forceinline__ void finish(const bool (&has)[kRows], const std::int64_t (&at)[kRows],
                                         Quad (&sums)[kRows]) const {
    if (p.accumulate) {
      float old[kRows][4];
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        if (has[i]) read_quad(p.c + (at[i] + column), p.c_packs, count, old[i]);
      }
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        if (has[i]) apply(Formula<Add>{}, sums[i].v, old[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (!has[i]) continue;
      apply(Formula<Add>{}, sums[i].v, bias);
      if constexpr (kEpilogue) apply_epilogue(p, at[i] + column, count, sums[i].v);
      write_quad(p.c + (at[i] + column), p.c_packs, count, sums[i].v);
    }
  }
};

/// Split-K reduction: the last block of a tile to call it adds the partial sums in order of k, then applies
/// the epilogue.
template <class Tile, class T>
__device__ __forceinline__ void join_splits(const GemmPlan<T>& p, const GemmBlock& block) {
  const unsigned tile = (block.batch * p.m_tiles + static_cast<unsigned>(block.row / Tile::kM)) * p.n_tiles +
                        static_cast<unsigned>(block.column / Tile::kN);
  if (!is_last_block(p.counters + tile, p.splits)) return;
  const int thread = static_cast<int>(threadIdx.x);
  if (p.row_sums && block.column == 0 && thread < Tile::kM && block.row + thread < p.m) {
    const float* from = p.partial_row_sums + block.row + thread;
    float sum = *from;
#pragma unroll 1
    for (unsigned split = 1; split < p.splits; ++split) sum += *(from += p.m);
    p.row_sums[block.row + thread] = store<T>(sum);
  }
  constexpr int kAcross = Tile::kN / 4, kRowStep = Tile::kThreads / kAcross;
  const std::int64_t column = block.column + thread % kAcross * 4, step = p.batch * p.m * p.partial_row;
  if (column >= p.n) return;
  const QuadColumn<T> quads(p, column);
#pragma unroll 1
  for (int r = thread / kAcross; r < Tile::kM; r += kRowStep) {
    const std::int64_t row = block.row + r;
    if (row >= p.m) return;
    const float* from =
        p.partial + (static_cast<std::int64_t>(block.batch) * p.m + row) * p.partial_row + column;
    Quad sums[1] = {*reinterpret_cast<const Quad*>(from)};
    unsigned split = 1;
    const auto add = [&]<int kParts>() {  // issues all loads before the first addition
      Quad parts[kParts];
#pragma unroll
      for (int i = 0; i < kParts; ++i) parts[i] = *reinterpret_cast<const Quad*>(from += step);
#pragma unroll
      for (int i = 0; i < kParts; ++i) apply(Formula<Add>{}, sums[0].v, parts[i].v);
      split += kParts;
    };
#pragma unroll 1
    while (split + 4 <= p.splits) add.template operator()<4>();
#pragma unroll 1
    while (split < p.splits) add.template operator()<1>();
    const bool has[1] = {true};
    const std::int64_t at[1] = {block.c + row * p.c_row};
    quads.template finish<1, true>(has, at, sums);
  }
}

// ---- sums of the rows of A

/// Whether this block computes them: the blocks of the first column of tiles do.
template <class T>
__device__ __forceinline__ bool has_row_sums(const GemmPlan<T>& p, const GemmBlock& block) {
  return p.row_sums && block.column == 0;
}
/// Writes the sums of the block's range of k. Thread i has written sums[i].
template <class Tile, class T>
__device__ __forceinline__ void write_row_sums(const GemmPlan<T>& p, const GemmBlock& block,
                                               const float* sums) {
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t row = block.row + thread;
  if (!has_row_sums(p, block) || thread >= Tile::kM || row >= p.m) return;
  if (p.splits == 1) p.row_sums[row] = store<T>(sums[thread]);
  else p.partial_row_sums[block.split * p.m + row] = sums[thread];
}

/// The sums of a large tile do not fit in the block's shared memory, so they leave the registers in slices.
/// One slice has 32 rows of each of the kWarpsM warp rows. A small tile is one slice.
template <class Tile>
inline constexpr int kSliceRows = 32 * Tile::kWarpsM;
template <class Tile>
inline constexpr int kSlices = Tile::kM / kSliceRows<Tile>;
/// The leading dimension of a slice in shared memory. It is padded to avoid bank conflicts.
template <class Tile>
inline constexpr int kSlicePitch = Tile::kN + Tile::kSlicePad;
template <class Tile>
inline constexpr int kSliceFloats = kSliceRows<Tile>* kSlicePitch<Tile>;

/// `write_slice(slice)` writes a thread's sums of one slice to `sums` in shared memory. `block` also lies in
/// shared memory, because in registers it would be live during the whole mainloop.
template <class Tile, class T, class WriteSlice>
__device__ __forceinline__ void finish_tile(const GemmPlan<T>& p, const GemmBlock& block, const float* sums,
                                            const WriteSlice& write_slice) {
  // Each thread handles the same columns in all rows.
  constexpr int kAcross = Tile::kN / 4, kRowStep = Tile::kThreads / kAcross;
  constexpr int kRounds = kSliceRows<Tile> / kRowStep, kAtOnce = Tile::kFinishRows;
  static_assert(kRowStep * kAcross == Tile::kThreads && kRounds % kAtOnce == 0);
  const int across = static_cast<int>(threadIdx.x) % kAcross * 4;
  const int first_row = static_cast<int>(threadIdx.x) / kAcross;
  const std::int64_t column = block.column + across;
  const std::int64_t partial = (static_cast<std::int64_t>(block.split) * p.batch + block.batch) * p.m;
  const QuadColumn<T> quads(p, column);

#pragma unroll 1
  for (int slice = 0; slice < kSlices<Tile>; ++slice) {
    __syncthreads();  // the previous contents have been read
    write_slice(slice);
    __syncthreads();
    const auto finish = [&]<int kRows, bool kEpilogue>(int round) {
      bool has[kRows];
      std::int64_t at[kRows];
      Quad v[kRows];
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const int r = first_row + (round + i) * kRowStep;
        const std::int64_t row = block.row + (r / 32 * kSlices<Tile> + slice) * 32 + r % 32;
        v[i] = *reinterpret_cast<const Quad*>(sums + r * kSlicePitch<Tile> + across);
        has[i] = row < p.m;
        at[i] = p.splits > 1 ? (partial + row) * p.partial_row : block.c + row * p.c_row;
      }
      if (p.splits == 1) return quads.template finish<kRows, kEpilogue>(has, at, v);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        if (has[i]) *reinterpret_cast<Quad*>(p.partial + (at[i] + column)) = v[i];
      }
    };
    if (column >= p.n) continue;
    if (p.epilogue == Epilogue::none || p.splits > 1)
#pragma unroll 1
      for (int round = 0; round < kRounds; round += kAtOnce)
        finish.template operator()<kAtOnce, false>(round);
    else
#pragma unroll 1
      for (int round = 0; round < kRounds; ++round) finish.template operator()<1, true>(round);
  }
  if (p.splits > 1) join_splits<Tile>(p, block);
}

// ---- host

inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

inline std::int64_t batch_count(const GemmArgs& g) {
  std::int64_t count = 1;
  for (int d = 0; d < g.batch_ndim; ++d) count *= g.batch_sizes[d];
  return count;
}

/// The most elements that one load may take of an operand with contiguous lines of `length` elements: 16
/// bytes, 4 bytes of a 16-bit type, or 1.
template <class T>
int operand_width(const void* data, std::int64_t pitch, std::int64_t length, int batch_ndim,
                  const std::int64_t (&batch)[kMaxDims]) {
  const auto allows = [&](int width) {
    bool all = reinterpret_cast<std::uintptr_t>(data) % (static_cast<unsigned>(width) * sizeof(T)) == 0 &&
               pitch % width == 0 && length % width == 0;
    for (int d = 0; d < batch_ndim; ++d) all = all && batch[d] % width == 0;
    return all;
  };
  constexpr int V = 16 / sizeof(T);
  return allows(V) ? V : sizeof(T) == 2 && allows(2) ? 2 : 1;
}

/// Which of A and B are contiguous along k, the elements per load of each, and whether both allow 16-byte
/// loads.
struct GemmLayout {
  bool a_along_k, b_along_k, packs;
  int a_width, b_width;
};
template <class T>
GemmLayout gemm_layout(const GemmArgs& g) {
  GemmLayout l{.a_along_k = g.a_strides.row_major(g.k), .b_along_k = !g.b_strides.row_major(g.n)};
  l.a_width = operand_width<T>(g.a.address(), l.a_along_k ? g.a_strides.row : g.a_strides.col,
                               l.a_along_k ? g.k : g.m, g.batch_ndim, g.a_batch);
  l.b_width = operand_width<T>(g.b.address(), l.b_along_k ? g.b_strides.col : g.b_strides.row,
                               l.b_along_k ? g.k : g.n, g.batch_ndim, g.b_batch);
  l.packs = l.a_width == 16 / sizeof(T) && l.b_width == 16 / sizeof(T);
  return l;
}

/// Returns the estimated duration of a product in clocks of an H100, which has 132 SMs.
template <class Tile>
double gemm_clocks(const GemmArgs& g, std::int64_t batch, std::int64_t splits) {
  constexpr std::int64_t kSms = 132;
  constexpr double kBytesPerClock = 2400;  // memory bandwidth of the whole GPU
  const std::int64_t blocks = ceil_div(g.m, Tile::kM) * ceil_div(g.n, Tile::kN) * batch * splits;
  const double tile = Tile::kM * Tile::kN * static_cast<double>(ceil_div(g.k, splits)) / Tile::kFmasPerClock;
  double clocks = static_cast<double>(ceil_div(blocks, kSms)) * (tile + Tile::kOverheadClocks);
  // The partial sums are written by all blocks, and read again by one block per tile, which gets 64 bytes per
  // clock at best.
  if (splits > 1)
    clocks += 2000 + 4.0 * static_cast<double>(splits * batch * g.m * g.n) / kBytesPerClock +
              4.0 * static_cast<double>(splits * Tile::kM * Tile::kN) / 64;
  return clocks;
}

/// The strategy with the fewest estimated clocks. It depends only on the product, not on the GPU, so results
/// have the same bits on every GPU.
template <class Large, class Small>
GemmStrategy fastest_strategy(const GemmArgs& g) {
  const std::int64_t batch = batch_count(g), most = g.k / 128;
  GemmStrategy best;
  double fewest = 0;
  const auto consider = [&]<class Tile>(bool large) {
    const std::int64_t tiles = ceil_div(g.m, Tile::kM) * ceil_div(g.n, Tile::kN) * batch;
    for (std::int64_t waves = 0; waves <= 4; ++waves) {  // 0: no split
      const std::int64_t splits = waves ? std::min(132 * waves / std::max<std::int64_t>(tiles, 1), most) : 1;
      if (waves && splits < 2) continue;
      const double clocks = gemm_clocks<Tile>(g, batch, splits);
      if (fewest != 0 && clocks >= fewest) continue;
      fewest = clocks;
      best = {large, splits};
    }
  };
  consider.template operator()<Large>(!std::is_same_v<Large, Small>);
  consider.template operator()<Small>(false);
  return best;
}

template <class Tile, class T>
GemmPlan<T> gemm_plan(const GemmArgs& g, const GemmLayout& layout, std::int64_t splits) {
  GemmPlan<T> p{};
  p.m = g.m, p.n = g.n, p.k = g.k;
  // With k = 0 nothing is read and A and B may be null, so the address of C stands in for them.
  p.c = g.c.as<T>();
  p.a = g.k ? g.a.as<T>() : p.c;
  p.b = g.k ? g.b.as<T>() : p.c;
  p.aux = g.aux.as<T>();
  p.bias = g.bias.as<T>();
  p.row_sums = g.row_sums.as<T>();
  p.a_pitch = layout.a_along_k ? g.a_strides.row : g.a_strides.col;
  p.b_pitch = layout.b_along_k ? g.b_strides.col : g.b_strides.row;
  p.a_along_k = layout.a_along_k, p.b_along_k = layout.b_along_k;
  p.a_width = layout.a_width, p.b_width = layout.b_width;
  p.c_row = g.c_row;
  p.accumulate = g.accumulate;
  p.epilogue = g.epilogue;
  p.c_packs = g.n % 4 == 0 && g.c_row % 4 == 0;
  for (const T* data : {static_cast<const T*>(p.c), static_cast<const T*>(p.aux), p.bias})
    p.c_packs = p.c_packs && aligned<T, 4>(data);
  p.batch = static_cast<unsigned>(batch_count(g));
  p.batch_ndim = g.batch_ndim;
  for (int d = 0; d < g.batch_ndim; ++d) {
    p.batch_sizes[d] = static_cast<unsigned>(g.batch_sizes[d]);
    p.a_batch[d] = g.a_batch[d], p.b_batch[d] = g.b_batch[d], p.c_batch[d] = g.c_batch[d];
    p.c_packs = p.c_packs && g.c_batch[d] % 4 == 0;
  }
  p.m_tiles = static_cast<unsigned>(ceil_div(g.m, Tile::kM));
  p.n_tiles = static_cast<unsigned>(ceil_div(g.n, Tile::kN));
  // A split may have at most 2^30 elements of k, because kernels count them in 31 bits.
  splits = std::max(splits, ceil_div(g.k, 1 << 30));
  p.k_split = std::max<std::int64_t>(ceil_div(ceil_div(g.k, splits), Tile::kDepth), 1) * Tile::kDepth;
  p.splits = static_cast<unsigned>(std::max<std::int64_t>(ceil_div(g.k, p.k_split), 1));
  p.partial_row = ceil_div(g.n, 4) * 4;
  // The number of blocks is computed in 64 bits, because 2^32 matrices would wrap to 0 in 32 bits.
  const std::int64_t tiles = std::int64_t{p.m_tiles} * p.n_tiles * batch_count(g), blocks = tiles * p.splits;
  check(blocks <= 0x7fffffff && (p.splits == 1 || tiles <= kStreamCounters), "[matmul] ", batch_count(g),
        " products of (", g.m, ", ", g.k, ") and (", g.k, ", ", g.n,
        ") are too many for a launch; multiply fewer at once");
  return p;
}

/// Launches `kernel` with the grid and workspace of its plan.
template <class Tile, class T>
void launch_gemm_plan(void (*kernel)(GemmPlan<T>), GemmPlan<T> plan, std::size_t shared_bytes,
                      const LaunchContext& context) {
  Scratch<float> partial;
  if (plan.splits > 1) {
    const std::int64_t sums = std::int64_t{plan.splits} * plan.batch * plan.m * plan.partial_row;
    partial = Scratch<float>(context.device, sums + (plan.row_sums ? plan.splits * plan.m : 0));
    plan.partial = partial.data();
    plan.partial_row_sums = partial.data() + sums;
    plan.counters = counters_of(context);
  }
  launch(kernel, plan.m_tiles * plan.n_tiles * plan.splits * plan.batch, Tile::kThreads, shared_bytes,
         stream_of(context), plan);
}

}  // namespace tapestry::kernels::cuda
