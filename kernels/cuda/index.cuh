#pragma once
// Row gather by index, and its gradient, for index_select and embedding. Gathers copy raw bits, with one
// kernel per element size, and use 16-byte accesses if all addresses are aligned. The gradient adds rows of
// equal index without atomics: the indices are sorted with their positions, and the threads of each row add
// its gradients in order of position. A run of equal indices is split into chunks, whose sums are added in
// order by a second kernel, because frequent indices, such as a language's commonest tokens, would otherwise
// keep a few threads busy while the rest of the GPU waits. Results are deterministic, and a row's bits depend
// only on its own gradients: chunks are counted from the start of the run.
#include "tapestry/kernels/cuda/bad_index.cuh"
#include "tapestry/kernels/cuda/copy.cuh"
#include "tapestry/kernels/cuda/dims.cuh"
#include "tapestry/kernels/cuda/sort.cuh"
#include "tapestry/kernels/ops/index.h"

namespace tapestry::kernels::cuda {

inline constexpr int kIndexThreads = 256;

inline unsigned index_blocks(std::int64_t threads) {
  return static_cast<unsigned>((threads + kIndexThreads - 1) / kIndexThreads);
}
__device__ __forceinline__ std::int64_t index_thread() {
  return static_cast<std::int64_t>(blockIdx.x) * kIndexThreads + threadIdx.x;
}
/// Returns the quotient n / d and sets `rest` to the remainder.
__device__ __forceinline__ std::int64_t split(std::int64_t n, const WideDivisor& d, std::int64_t& rest) {
  const std::uint64_t quotient = d.divide(static_cast<std::uint64_t>(n));
  rest = n - static_cast<std::int64_t>(quotient * d.value);
  return static_cast<std::int64_t>(quotient);
}

/// Indices of type i64 or i32.
struct Indices {
  const void* data;
  bool narrow;  // i32
  explicit Indices(const ConstArray& index) : data(index.address()), narrow(index.dtype() == DType::i32) {}
  __device__ std::int64_t operator[](std::int64_t i) const {
    return narrow ? static_cast<const std::int32_t*>(data)[i] : static_cast<const std::int64_t*>(data)[i];
  }
};
/// The sort key of an index. As an unsigned number, a negative index is above all valid ones.
struct IndexKey {
  Indices index;
  __device__ std::uint64_t operator()(std::int64_t i) const { return static_cast<std::uint64_t>(index[i]); }
};

// ---- gather

struct Gather {
  WideDivisor count, inner;                                   // number of indices; packs or elements per row
  std::int64_t total;                                         // packs or elements of y
  std::int64_t rows, outer_stride, row_stride, inner_stride;  // of x
  Indices index;
  BadIndexCell first_bad;
};

/// Computes y[o, i, :] = x[o, index[i], :] with dense y. Rows of invalid indices become zero.
template <class T, int V>
__global__ void __launch_bounds__(kIndexThreads) gather_rows(Gather g, const T* x, T* y) {
  const std::int64_t thread = index_thread();
  if (thread >= g.total) return;
  std::int64_t j, i;
  const std::int64_t outer = split(split(thread, g.inner, j), g.count, i), at = g.index[i];
  Pack<T, V> pack{};
  if (at >= 0 && at < g.rows)
    pack = *reinterpret_cast<const Pack<T, V>*>(x + outer * g.outer_stride + at * g.row_stride +
                                                j * g.inner_stride);
  else if (outer == 0 && j == 0) report_bad(g.first_bad, i);
  *reinterpret_cast<Pack<T, V>*>(y + thread * V) = pack;
}

/// The counts and strides in `g` are in elements. inner_stride is 1 if the rows of x are dense.
template <class T>
void launch_gather(Gather g, const T* rows, T* result, cudaStream_t stream) {
  using B = Bits<T>;
  const auto* const x = reinterpret_cast<const B*>(rows);
  auto* const y = reinterpret_cast<B*>(result);
  constexpr int V = 16 / sizeof(B);
  if (g.total == 0) return;
  const auto launch_packs = [&]<int N>() {
    g.inner = WideDivisor(static_cast<std::int64_t>(g.inner.value) / N);
    g.total /= N;
    g.inner_stride *= N;
    launch(&gather_rows<B, N>, index_blocks(g.total), kIndexThreads, 0, stream, g, x, y);
  };
  const bool packs = g.inner.value % V == 0 && g.inner_stride == 1 && g.row_stride % V == 0 &&
                     g.outer_stride % V == 0 && aligned<B, V>(x) && aligned<B, V>(y);
  if (packs) launch_packs.template operator()<V>();
  else launch_packs.template operator()<1>();
}

template <class T>
void launch_index_select(const LaunchContext& context, const IndexSelectArgs& r) {
  launch_gather<T>(
      {WideDivisor(std::max<std::int64_t>(r.count, 1)), WideDivisor(std::max<std::int64_t>(r.inner, 1)),
       r.outer * r.count * r.inner, r.rows, r.rows * r.inner, r.inner, 1, Indices(r.index), r.first_bad},
      r.x.as<T>(), r.y.as<T>(), stream_of(context));
}
// ---- sums of rows (gradient)

/// The rows that one thread adds of a run of equal indices.
inline constexpr std::int64_t kSegmentChunk = 32;

struct Segments {
  WideDivisor count, inner;    // number of indices; packs or elements per row
  std::int64_t total;          // threads: outer x count x inner
  std::int64_t rows, skipped;  // skipped: an index whose row receives nothing (padding_idx), or -1
  const std::uint64_t* keys;   // the sorted indices
  const std::int64_t *positions, *starts;
  float* partials;  // (outer, partial_rows(count), inner); null if no run can be longer than a chunk
  BadIndexCell first_bad;
};

/// Writes to starts[i] the first position of the run of equal keys that contains position i, found by
/// exponential and then binary search.
template <class = void>
__global__ void __launch_bounds__(kIndexThreads)
    find_starts(std::int64_t count, const std::uint64_t* keys, std::int64_t* starts) {
  const std::int64_t i = index_thread();
  if (i >= count) return;
  const std::uint64_t key = keys[i];
  std::int64_t first = i, step = 1;
  for (; first >= step && keys[first - step] == key; step *= 2) first -= step;
  for (; step > 0; step /= 2)
    if (first >= step && keys[first - step] == key) first -= step;
  starts[i] = first;
}

/// Returns the end of the run of equal keys that starts at `first`, by exponential and then binary search.
__device__ __forceinline__ std::int64_t segment_end(const std::uint64_t* keys, std::int64_t first,
                                                    std::int64_t count) {
  const std::uint64_t key = keys[first];
  std::int64_t last = first, step = 1;
  for (; last + step < count && keys[last + step] == key; step *= 2) last += step;
  for (; step > 0; step /= 2)
    if (last + step < count && keys[last + step] == key) last += step;
  return last + 1;
}

/// The number of rows of partial sums. A block of kSegmentChunk positions holds the starts of at most two
/// chunks of split runs: a split run's first chunk, and the last chunk of the run before it.
inline std::int64_t partial_rows(std::int64_t count) {
  return count > kSegmentChunk ? 2 * ((count + kSegmentChunk - 1) / kSegmentChunk) : 0;
}
/// The row for the partial sum of the chunk that begins at `position`.
__device__ __forceinline__ std::int64_t partial_row(std::int64_t position, bool first_chunk) {
  return position / kSegmentChunk * 2 + (first_chunk ? 0 : 1);
}

/// Adds the rows dy[o, position, :] of one chunk of a run, in order of position. The sum of a run that has
/// one chunk is added to dx[o, key, :]. The sums of longer runs are written to `partials`, which add_partials
/// reads. Only the threads at the start of a chunk add; all others return at once.
template <class T, class Sum, int V>
__global__ void __launch_bounds__(kIndexThreads) add_segments(Segments s, const T* dy, Sum* dx) {
  const std::int64_t thread = index_thread();
  if (thread >= s.total) return;
  std::int64_t j, first;
  const std::int64_t outer = split(split(thread, s.inner, j), s.count, first);
  const auto count = static_cast<std::int64_t>(s.count.value),
             inner = static_cast<std::int64_t>(s.inner.value);
  const std::int64_t start = s.starts[first];
  if ((first - start) % kSegmentChunk != 0) return;
  const std::uint64_t key = s.keys[first];
  const auto row = static_cast<std::int64_t>(key);
  if (row < 0 || row >= s.rows) {
    if (first == start && outer == 0 && j == 0) report_bad(s.first_bad, s.positions[first]);
    return;
  }
  if (row == s.skipped) return;
  const std::int64_t next = first + kSegmentChunk;
  const bool whole = first == start && (next >= count || s.keys[next] != key);
  const std::int64_t end = segment_end(s.keys, first, next < count ? next : count);
  auto* const to = reinterpret_cast<Pack<Sum, V>*>(dx) + (outer * s.rows + row) * inner + j;
  const auto* const from = reinterpret_cast<const Pack<T, V>*>(dy) + outer * count * inner + j;
  float sum[V] = {};
  if (whole) {
    const Pack<Sum, V> before = *to;
#pragma unroll
    for (int v = 0; v < V; ++v) sum[v] = load(before.v[v]);
  }
  std::int64_t i = first;
  for (; i + 4 <= end; i += 4) {  // four loads in flight
    Pack<T, V> packs[4];
#pragma unroll
    for (int u = 0; u < 4; ++u) packs[u] = from[s.positions[i + u] * inner];
#pragma unroll
    for (int u = 0; u < 4; ++u) {
#pragma unroll
      for (int v = 0; v < V; ++v) sum[v] += load(packs[u].v[v]);
    }
  }
  for (; i < end; ++i) {
    const Pack<T, V> pack = from[s.positions[i] * inner];
#pragma unroll
    for (int v = 0; v < V; ++v) sum[v] += load(pack.v[v]);
  }
  if (!whole) {
    const std::int64_t blocks = (count + kSegmentChunk - 1) / kSegmentChunk;
    float* const partial =
        s.partials + ((outer * 2 * blocks + partial_row(first, first == start)) * inner + j) * V;
#pragma unroll
    for (int v = 0; v < V; ++v) partial[v] = sum[v];
    return;
  }
  Pack<Sum, V> after;
#pragma unroll
  for (int v = 0; v < V; ++v) after.v[v] = store<Sum>(sum[v]);
  *to = after;
}

/// Adds the partial sums of each split run to dx in order. A split run has at least one position more than a
/// chunk, so the first multiple of kSegmentChunk behind its start is one of its positions. The threads of
/// that multiple, which no other run has, add: there are outer x (multiples - 1) x inner of them.
template <class Sum>
__global__ void __launch_bounds__(kIndexThreads)
    add_partials(Segments s, WideDivisor multiples, std::int64_t total, Sum* dx) {
  const std::int64_t thread = index_thread();
  if (thread >= total) return;
  std::int64_t j, multiple;
  const std::int64_t outer = split(split(thread, s.inner, j), multiples, multiple);
  const std::int64_t at = (multiple + 1) * kSegmentChunk, start = s.starts[at];
  const auto count = static_cast<std::int64_t>(s.count.value),
             inner = static_cast<std::int64_t>(s.inner.value);
  const std::uint64_t key = s.keys[at];
  const auto row = static_cast<std::int64_t>(key);
  std::int64_t i = start + kSegmentChunk;
  if (start < at - kSegmentChunk || start == at || i >= count || s.keys[i] != key) return;
  if (row < 0 || row >= s.rows || row == s.skipped) return;
  const std::int64_t blocks = (count + kSegmentChunk - 1) / kSegmentChunk;
  const float* const partials = s.partials + outer * 2 * blocks * inner + j;
  Sum* const to = dx + (outer * s.rows + row) * inner + j;
  float sum = load(*to) + partials[partial_row(start, true) * inner];
  const std::int64_t step = 2 * inner;  // from one chunk's partial sum to the next one's
  const float* from = partials + partial_row(i, false) * inner;
  constexpr std::int64_t kAhead = 4 * kSegmentChunk;
  for (; i + kAhead - kSegmentChunk < count && s.keys[i + kAhead - kSegmentChunk] == key; i += kAhead) {
    float ahead[4];  // four loads in flight
#pragma unroll
    for (int u = 0; u < 4; ++u) ahead[u] = from[u * step];
#pragma unroll
    for (int u = 0; u < 4; ++u) sum += ahead[u];
    from += 4 * step;
  }
  for (; i < count && s.keys[i] == key; i += kSegmentChunk, from += step) sum += *from;
  *to = store<Sum>(sum);
}

template <class T, class Sum>
void launch_add_rows(const Indices& index, std::int64_t outer, std::int64_t rows, std::int64_t count,
                     std::int64_t inner, std::int64_t skipped, BadIndexCell first_bad, const T* dy, Sum* dx,
                     const LaunchContext& context) {
  if (outer * count * inner == 0) return;
  const cudaStream_t stream = stream_of(context);
  const Sorted sorted(IndexKey{index}, count, context);
  const Scratch<std::int64_t> starts(context.device, count);
  const Scratch<float> partials(context.device, outer * partial_rows(count) * inner);
  launch(&find_starts<>, index_blocks(count), kIndexThreads, 0, stream, count, sorted.keys(), starts.data());
  const auto segments = [&](std::int64_t packs) {
    return Segments{
        WideDivisor(count), WideDivisor(packs), outer * count * packs, rows,     skipped, sorted.keys(),
        sorted.positions(), starts.data(),      partials.data(),       first_bad};
  };
  constexpr int V = static_cast<int>(16 / std::max(sizeof(T), sizeof(Sum)));
  const auto launch_packs = [&]<int N>() {
    const Segments s = segments(inner / N);
    launch(&add_segments<T, Sum, N>, index_blocks(s.total), kIndexThreads, 0, stream, s, dy, dx);
  };
  if (inner % V == 0 && aligned<T, V>(dy) && aligned<Sum, V>(dx)) launch_packs.template operator()<V>();
  else launch_packs.template operator()<1>();
  const std::int64_t multiples = (count - 1) / kSegmentChunk, total = outer * multiples * inner;
  if (total == 0) return;
  launch(&add_partials<Sum>, index_blocks(total), kIndexThreads, 0, stream, segments(inner),
         WideDivisor(multiples), total, dx);
}

template <class T>
void launch_index_add(const LaunchContext& context, const IndexAddArgs& r) {
  launch_add_rows<T, float>(Indices(r.index), r.outer, r.rows, r.count, r.inner, -1, r.first_bad,
                            r.dy.as<T>(), r.dx.as<float>(), context);
}
// ---- scatter: one element per row

/// Computes dx[o, k, i] = index[o, i] == k ? g[o, i] : 0.
template <class T>
__global__ void __launch_bounds__(kIndexThreads)
    scatter_elements(std::int64_t total, WideDivisor n, WideDivisor inner, const std::int64_t* index,
                     const T* g, T* dx) {
  const std::int64_t thread = index_thread();
  if (thread >= total) return;
  std::int64_t i, k;
  const std::int64_t outer = split(split(thread, inner, i), n, k);
  const std::int64_t from = outer * static_cast<std::int64_t>(inner.value) + i;
  dx[thread] = index[from] == k ? g[from] : T(0);
}
template <class T>
void launch_scatter(const LaunchContext& context, const ScatterArgs& s) {
  using B = Bits<T>;
  const std::int64_t total = s.outer * s.n * s.inner;
  if (total == 0) return;
  launch(&scatter_elements<B>, index_blocks(total), kIndexThreads, 0, stream_of(context), total,
         WideDivisor(s.n), WideDivisor(s.inner), s.index.as<std::int64_t>(),
         reinterpret_cast<const B*>(s.g.as<T>()), reinterpret_cast<B*>(s.dx.as<T>()));
}

}  // namespace tapestry::kernels::cuda
