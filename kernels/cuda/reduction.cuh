#pragma once
// Kernels shared by all reductions. A thread reduces its elements to a State, then States are merged. The
// order of merges depends only on sizes, strides and 16-byte alignment, so results are deterministic.
//
//   reduce_rows      1 to 32 threads or a block per output; adjacent threads read along the reduced dimension
//   reduce_columns   adjacent threads have adjacent outputs, if memory is contiguous in that direction
//   merge_pieces     if outputs are few, many blocks reduce pieces of each; this kernel merges their States
//
//   struct Op {
//     using State, Center;
//     static State identity();                   // leaves the other State unchanged when merged
//     Center center(std::int64_t output) const;  // a value known before the reduction, such as the mean
//     void take(State&, const Compute<T> (&x)[N], Center, const Position&) const;  // x[j] is at position(j)
//     static State merge(State, State);          // in any order
//     static State of_lane(State, int bits);     // State of lane (lane ^ bits), by shuffle
//     void finish(std::int64_t output, State) const;
//   };
//
// Each thread has four 16-byte loads or eight scalar loads in flight: 16 KiB per block, at least 48 KiB per
// SM at up to 80 registers.
#include <algorithm>

#include "tapestry/kernels/cuda/dims.cuh"
#include "tapestry/kernels/ops/reduce.h"
#include "tapestry/kernels/scratch.h"

namespace tapestry::kernels::cuda {

inline constexpr int kReductionThreads = 256;
/// The target number of blocks: a few waves on an H200. If a launch would have fewer, outputs are reduced in
/// pieces.
inline constexpr std::int64_t kReductionBlocks = 2048;
template <int V>
inline constexpr int kLoads = V > 1 ? 4 : 8;

struct ReducePlan {
  Dims<2> kept;     // offsets in the output and in the input
  Dims<1> reduced;  // in packs if they run along the reduced dimension
  std::int64_t outputs;
  std::int64_t steps;  // packs or elements along the reduced dimension
  std::int64_t piece;  // steps per piece
  WideDivisor pieces;
  unsigned tail;   // elements after the last pack
  unsigned width;  // adjacent threads per output (rows) or per row of columns; a power of two
};

template <int V, class T>
__device__ __forceinline__ void read_elements(const T* p, Compute<T>* x) {
  const Pack<T, V> pack = *reinterpret_cast<const Pack<T, V>*>(p);
#pragma unroll
  for (int i = 0; i < V; ++i) x[i] = load(pack.v[i]);
}

/// Takes `U` packs with a stride of `step` packs.
template <int V, int U, class Op, class T>
__device__ __forceinline__ void take_packs(const ReducePlan& plan, const Op& op, const T* x,
                                           typename Op::Center center, std::int64_t first, unsigned step,
                                           typename Op::State& s) {
  Compute<T> v[U * V];
#pragma unroll
  for (int u = 0; u < U; ++u) {
    std::int64_t at[1];
    plan.reduced.offsets(static_cast<std::uint64_t>(first + u * step), at);
    read_elements<V>(x + at[0], v + u * V);
  }
  op.take(s, v, center, [=](int j) { return (first + j / V * step) * V + j % V; });
}

template <class Op, class T, int V>
__global__ void __launch_bounds__(kReductionThreads)
    reduce_rows(ReducePlan plan, Op op, const T* x, typename Op::State* parts) {
  using State = typename Op::State;
  __shared__ State warps[kReductionThreads / 32];
  constexpr int U = kLoads<V>;
  const unsigned thread = threadIdx.x, lane = thread & (plan.width - 1);
  const std::int64_t unit = static_cast<std::int64_t>(blockIdx.x) * (kReductionThreads / plan.width) +
                            (plan.width == kReductionThreads ? 0 : thread / plan.width);
  const auto output = static_cast<std::int64_t>(plan.pieces.divide(static_cast<std::uint64_t>(unit)));
  const bool inside = output < plan.outputs;
  State s = Op::identity();
  std::int64_t at[2] = {0, 0};
  if (inside) {
    plan.kept.offsets(static_cast<std::uint64_t>(output), at);
    const typename Op::Center center = op.center(at[0]);
    const T* const from = x + at[1];
    const std::int64_t begin = (unit - output * static_cast<std::int64_t>(plan.pieces.value)) * plan.piece;
    const std::int64_t end = begin + plan.piece < plan.steps ? begin + plan.piece : plan.steps;
    std::int64_t i = begin + lane;
    for (; i + (U - 1) * plan.width < end; i += U * plan.width)
      take_packs<V, U>(plan, op, from, center, i, plan.width, s);
    for (; i < end; i += plan.width) take_packs<V, 1>(plan, op, from, center, i, plan.width, s);
    if (V > 1 && end == plan.steps)
      for (unsigned t = lane; t < plan.tail; t += plan.width) {
        const std::int64_t last = plan.steps * V + t;
        Compute<T> v[1];
        read_elements<1>(from + last, v);
        op.take(s, v, center, [=](int) { return last; });
      }
  }
#pragma unroll
  for (unsigned bits = 16; bits > 0; bits /= 2)
    if (bits < plan.width) s = Op::merge(s, Op::of_lane(s, static_cast<int>(bits)));
  if (plan.width == kReductionThreads) {
    if (thread % 32 == 0) warps[thread / 32] = s;
    __syncthreads();
    s = warps[thread % (kReductionThreads / 32)];
#pragma unroll
    for (int bits = kReductionThreads / 64; bits > 0; bits /= 2) s = Op::merge(s, Op::of_lane(s, bits));
  }
  if (!inside || lane != 0) return;
  if (parts) parts[unit] = s;
  else op.finish(at[0], s);
}

/// A thread reduces V columns. In a block, plan.width adjacent threads have adjacent columns. The other
/// threads of the block have the same columns, but other elements along the reduced dimension.
template <class Op, class T, int V>
__global__ void __launch_bounds__(kReductionThreads)
    reduce_columns(ReducePlan plan, Op op, const T* x, typename Op::State* parts) {
  using State = typename Op::State;
  __shared__ State shared[V][kReductionThreads];  // adjacent threads use adjacent words
  constexpr int U = kLoads<V>;
  const unsigned thread = threadIdx.x, height = kReductionThreads / plan.width, y = thread / plan.width;
  const std::uint64_t tile = plan.pieces.divide(blockIdx.x);
  const std::int64_t part = static_cast<std::int64_t>(blockIdx.x - tile * plan.pieces.value);
  const std::int64_t output = static_cast<std::int64_t>(tile * plan.width + (thread & (plan.width - 1))) * V;
  const bool inside = output < plan.outputs;
  const std::int64_t across = plan.kept.strides[0][plan.kept.ndim - 1];
  State s[V];
#pragma unroll
  for (int v = 0; v < V; ++v) s[v] = Op::identity();
  std::int64_t at[2] = {0, 0};
  if (inside) {
    plan.kept.offsets(static_cast<std::uint64_t>(output), at);
    typename Op::Center center[V];
#pragma unroll
    for (int v = 0; v < V; ++v) center[v] = op.center(at[0] + v * across);
    const T* const from = x + at[1];
    const std::int64_t begin = part * plan.piece;
    const std::int64_t end = begin + plan.piece < plan.steps ? begin + plan.piece : plan.steps;
    std::int64_t i = begin + y;
    for (; i + (U - 1) * height < end; i += U * height) {
      Compute<T> rows[U][V];
#pragma unroll
      for (int u = 0; u < U; ++u) {
        std::int64_t row[1];
        plan.reduced.offsets(static_cast<std::uint64_t>(i + u * height), row);
        read_elements<V>(from + row[0], rows[u]);
      }
#pragma unroll
      for (int v = 0; v < V; ++v) {
        Compute<T> column[U];
#pragma unroll
        for (int u = 0; u < U; ++u) column[u] = rows[u][v];
        op.take(s[v], column, center[v], [=](int u) { return i + u * height; });
      }
    }
    for (; i < end; i += height) {
      std::int64_t row[1];
      plan.reduced.offsets(static_cast<std::uint64_t>(i), row);
      Compute<T> elements[V];
      read_elements<V>(from + row[0], elements);
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const Compute<T> element[1] = {elements[v]};
        op.take(s[v], element, center[v], [=](int) { return i; });
      }
    }
  }
#pragma unroll
  for (int v = 0; v < V; ++v) shared[v][thread] = s[v];
  for (unsigned rows = height / 2; rows > 0; rows /= 2) {
    __syncthreads();
    if (y < rows) {
#pragma unroll
      for (int v = 0; v < V; ++v) {
        s[v] = Op::merge(s[v], shared[v][thread + rows * plan.width]);
        shared[v][thread] = s[v];
      }
    }
  }
  if (!inside || y != 0) return;
#pragma unroll
  for (int v = 0; v < V; ++v) {
    if (parts) parts[(output + v) * static_cast<std::int64_t>(plan.pieces.value) + part] = s[v];
    else op.finish(at[0] + v * across, s[v]);
  }
}

/// Merges the States of the pieces with one warp per output.
template <class Op>
__global__ void __launch_bounds__(kReductionThreads)
    merge_pieces(ReducePlan plan, Op op, const typename Op::State* parts) {
  const std::int64_t output =
      static_cast<std::int64_t>(blockIdx.x) * (kReductionThreads / 32) + threadIdx.x / 32;
  if (output >= plan.outputs) return;
  const auto pieces = static_cast<std::int64_t>(plan.pieces.value);
  typename Op::State s = Op::identity();
  for (std::int64_t i = threadIdx.x % 32; i < pieces; i += 32) s = Op::merge(s, parts[output * pieces + i]);
#pragma unroll
  for (int bits = 16; bits > 0; bits /= 2) s = Op::merge(s, Op::of_lane(s, bits));
  if (threadIdx.x % 32 != 0) return;
  std::int64_t at[2];
  plan.kept.offsets(static_cast<std::uint64_t>(output), at);
  op.finish(at[0], s);
}

struct ReductionLaunch {
  ReducePlan plan;
  bool columns;  // uses reduce_columns
  bool packs;    // packs: V elements per load
  std::int64_t blocks;
};

/// Plans a reduction. Packs of V elements of `size` bytes are used if layout and alignment allow it.
inline ReductionLaunch plan_reduction(const Reduction& r, int V, std::size_t size) {
  ReductionLaunch result{};
  ReducePlan& plan = result.plan;
  plan.outputs = r.outputs;

  // Sort kept dimensions by input stride, so that adjacent threads read adjacent memory.
  struct Dim {
    std::int64_t size, out, in;
  } kept[kMaxDims];
  std::int64_t out = 1;
  for (int d = r.kept_ndim - 1; d >= 0; --d) {
    kept[d] = {r.kept_sizes[d], out, r.kept_strides[d]};
    out *= r.kept_sizes[d];
  }
  std::stable_sort(kept, kept + r.kept_ndim,
                   [](const Dim& a, const Dim& b) { return b.in != 0 && (a.in == 0 || a.in > b.in); });
  plan.kept.ndim = r.kept_ndim;
  for (int d = 0; d < r.kept_ndim; ++d) {
    plan.kept.sizes[d] = WideDivisor(kept[d].size);
    plan.kept.strides[0][d] = kept[d].out, plan.kept.strides[1][d] = kept[d].in;
  }
  const int last = r.reduced_ndim - 1;
  if (r.count > 0) plan.reduced.ndim = r.reduced_ndim;
  for (int d = 0; d < plan.reduced.ndim && r.count > 0; ++d) {
    plan.reduced.sizes[d] = WideDivisor(r.reduced_sizes[d]);
    plan.reduced.strides[0][d] = r.reduced_strides[d];
  }
  const Dim& column = kept[r.kept_ndim - 1];
  const std::int64_t along = r.reduced_strides[last];
  result.columns = column.in != 0 && (along == 0 || column.in < along);

  bool& packs = result.packs;
  packs = r.count > 0 &&
          reinterpret_cast<std::uintptr_t>(r.x.address()) % (static_cast<std::size_t>(V) * size) == 0;
  const auto whole = [&](std::int64_t stride) { packs = packs && stride % V == 0; };
  for (int d = 0; d < r.kept_ndim - 1; ++d) whole(kept[d].in);
  for (int d = 0; d < last; ++d) whole(r.reduced_strides[d]);
  if (result.columns) {
    packs = packs && column.in == 1;
    whole(column.size);
    whole(along);
  } else {
    packs = packs && along == 1 && r.reduced_sizes[last] >= V;
    whole(column.in);
    if (last > 0) whole(r.reduced_sizes[last]);
  }
  if (!packs) V = 1;

  plan.steps = r.count;
  plan.width = 1;
  std::int64_t pieces = 1;
  if (result.columns) {
    const std::int64_t wide = r.outputs / V;
    unsigned height = 1;
    while (height < 8 && height * 8 <= r.count) height *= 2;
    plan.width = kReductionThreads / height;
    while (plan.width / 2 >= wide) plan.width /= 2;
    height = kReductionThreads / plan.width;
    result.blocks = (wide + plan.width - 1) / plan.width;
    if (result.blocks < kReductionBlocks / 2)
      pieces = std::min(kReductionBlocks / result.blocks, r.count / (height * 16));
  } else {
    plan.steps = r.count / V;
    if (V > 1) {
      plan.tail = static_cast<unsigned>(r.count % V);
      plan.reduced.sizes[last] = WideDivisor(r.reduced_sizes[last] / V);
      plan.reduced.strides[0][last] = V;
    }
    while (plan.width < 32 && plan.width * 4 < plan.steps) plan.width *= 2;
    if (plan.steps > 512 || (plan.steps >= kReductionThreads && r.outputs < 8 * kReductionBlocks))
      plan.width = kReductionThreads;
    if (plan.width == kReductionThreads && r.outputs < kReductionBlocks / 2)
      pieces = std::min(kReductionBlocks / r.outputs, plan.steps / (kReductionThreads * 8));
    result.blocks = r.outputs;
  }
  pieces = std::max<std::int64_t>(pieces, 1);
  plan.piece = (plan.steps + pieces - 1) / pieces;
  if (pieces > 1) pieces = (plan.steps + plan.piece - 1) / plan.piece;  // no piece may be empty
  plan.pieces = WideDivisor(pieces);
  if (!result.columns) {
    const std::int64_t of_block = kReductionThreads / plan.width;
    result.blocks = (r.outputs * pieces + of_block - 1) / of_block;
  } else {
    result.blocks *= pieces;
  }
  return result;
}

template <class T, class Op>
void launch_reduce(const Reduction& r, const Op& op, const LaunchContext& context) {
  const cudaStream_t stream = stream_of(context);
  using State = typename Op::State;
  // Integer reductions (counts, positions) are not worth vector kernels.
  constexpr int V = std::is_integral_v<T> ? 1 : static_cast<int>(16 / sizeof(T));
  if (r.outputs == 0) return;
  const ReductionLaunch how = plan_reduction(r, V, sizeof(T));
  const auto pieces = static_cast<std::int64_t>(how.plan.pieces.value);
  Scratch<State> scratch;
  if (pieces > 1) scratch = Scratch<State>(context.device, r.outputs * pieces);
  State* const parts = pieces > 1 ? scratch.data() : nullptr;
  const auto kernel = how.columns ? (how.packs ? &reduce_columns<Op, T, V> : &reduce_columns<Op, T, 1>)
                                  : (how.packs ? &reduce_rows<Op, T, V> : &reduce_rows<Op, T, 1>);
  launch(kernel, static_cast<unsigned>(how.blocks), kReductionThreads, 0, stream, how.plan, op, r.x.as<T>(),
         parts);
  if (pieces > 1)
    launch(&merge_pieces<Op>, static_cast<unsigned>((r.outputs + 7) / 8), kReductionThreads, 0, stream,
           how.plan, op, parts);
}

}  // namespace tapestry::kernels::cuda
