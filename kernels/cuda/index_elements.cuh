#pragma once
// Reads, writes and combinations of elements by index. Elements that are only moved are copied as raw bits,
// with one kernel per element size, and as packs of 16 bytes if the last loop dimension is dense.
//
// If several elements of y may belong to one element of x, the positions of the index arrays are sorted by
// the offset that they select in x. A run of equal offsets then lists the elements of y in order of position.
// A write takes the last one. A combination takes them in this order, without atomics: a thread combines
// kSegmentChunk positions of a run, and a second kernel combines the results of the chunks in order, as in
// index.cuh. Results are deterministic, and an element's bits depend only on what belongs to it.
#include <algorithm>

#include "tapestry/kernels/cuda/index.cuh"

namespace tapestry::kernels::cuda {

/// The loop dimensions of an Indexed, or some of them.
struct IndexedPlan {
  int ndim = 0, count = 0, first = 0, end = 0;
  std::int64_t wraps = 0;  // 1 if negative indices count from the end
  std::int64_t total = 1;  // number of coordinates in these dimensions
  WideDivisor sizes[kMaxDims];
  std::int64_t x_strides[kMaxDims] = {}, y_strides[kMaxDims] = {};
  Indexed::Index index[kMaxDims] = {};
  BadIndexCell first_bad = nullptr;

  /// Takes the loop dimensions begin to stop - 1. The index arrays remain if `indexed`.
  IndexedPlan(const Indexed& at, int begin, int stop, bool indexed) {
    if (indexed) {
      count = at.count, wraps = at.wraps, first = at.first - begin, end = at.end - begin;
      first_bad = at.first_bad;
      for (int k = 0; k < count; ++k) {
        index[k].values = at.index[k].values;
        index[k].size = at.index[k].size;
        index[k].x_stride = at.index[k].x_stride;
      }
    }
    for (int d = begin; d < stop; ++d) append(at, d);
  }
  /// Appends loop dimension d.
  void append(const Indexed& at, int d) {
    total *= at.sizes[d];
    sizes[ndim] = WideDivisor(at.sizes[d]);
    x_strides[ndim] = at.x_strides[d];
    y_strides[ndim] = at.y_strides[d];
    for (int k = 0; k < count; ++k) index[k].strides[ndim] = at.index[k].strides[d];
    ++ndim;
  }

  /// Computes the coordinates of a row-major number. The loops over dimensions are unrolled, so that the
  /// coordinates are in registers.
  __device__ void coordinates(std::int64_t n, std::int64_t (&at)[kMaxDims]) const {
#pragma unroll
    for (int d = kMaxDims - 1; d >= 0; --d) {
      at[d] = 0;
      if (d < ndim) n = split(n, sizes[d], at[d]);
    }
  }
  __device__ static std::int64_t dot(const std::int64_t (&at)[kMaxDims], const std::int64_t* strides) {
    std::int64_t sum = 0;
#pragma unroll
    for (int d = 0; d < kMaxDims; ++d) sum += at[d] * strides[d];
    return sum;
  }
  /// Adds to `x` the offset that the index arrays select. Reports an invalid index and returns false.
  __device__ bool select(const std::int64_t (&at)[kMaxDims], std::int64_t& x) const {
    for (int k = 0; k < count; ++k) {
      std::int64_t value = index[k].values[dot(at, index[k].strides)];
      if (wraps && value < 0) value += index[k].size;
      if (value < 0 || value >= index[k].size) {
        std::int64_t position = 0;
#pragma unroll
        for (int d = 0; d < kMaxDims; ++d) {
          if (d >= first && d < end) position = position * static_cast<std::int64_t>(sizes[d].value) + at[d];
        }
        report_bad(first_bad, position);
        return false;
      }
      x += value * index[k].x_stride;
    }
    return true;
  }
};

/// Raw bits of 16 bytes.
using Bits16 = Pack<std::uint64_t, 2>;

/// One thread per element. Reads y = x; elements of invalid indices become 0. If kWrite, writes x = y.
template <class B, bool kWrite>
__global__ void __launch_bounds__(kIndexThreads) move_elements(IndexedPlan plan, B* x, B* y) {
  const std::int64_t thread = index_thread();
  if (thread >= plan.total) return;
  std::int64_t at[kMaxDims];
  plan.coordinates(thread, at);
  std::int64_t from = IndexedPlan::dot(at, plan.x_strides);
  const std::int64_t to = IndexedPlan::dot(at, plan.y_strides);
  const bool valid = plan.select(at, from);
  if constexpr (kWrite) {
    if (valid) x[from] = y[to];
  } else {
    y[to] = valid ? x[from] : B{};
  }
}

/// The sort key of a position: the offset in x, or the largest number for an invalid index.
inline constexpr std::uint64_t kInvalidKey = ~std::uint64_t{0};
struct OffsetKey {
  IndexedPlan plan;
  __device__ std::uint64_t operator()(std::int64_t i) const {
    std::int64_t at[kMaxDims];
    plan.coordinates(i, at);
    std::int64_t x = IndexedPlan::dot(at, plan.x_strides);
    return plan.select(at, x) ? static_cast<std::uint64_t>(x) : kInvalidKey;
  }
};

/// One thread per sorted position and coordinate in the other dimensions.
struct SortedPlan {
  IndexedPlan indexed;  // the dimensions that index arrays depend on
  IndexedPlan plain;    // the others
  WideDivisor inner;    // number of coordinates in the plain dimensions behind the indexed ones
  WideDivisor positions;
  std::int64_t total;
  const std::uint64_t* keys;
  const std::int64_t* order;

  /// Computes this thread's sorted position, the number of its coordinates in the plain dimensions, and their
  /// offsets.
  __device__ std::int64_t locate(std::int64_t thread, std::int64_t& number, std::int64_t& x,
                                 std::int64_t& y) const {
    std::int64_t j, i, at[kMaxDims];
    const std::int64_t outer = cuda::split(cuda::split(thread, inner, j), positions, i);
    number = outer * static_cast<std::int64_t>(inner.value) + j;
    plain.coordinates(number, at);
    x = IndexedPlan::dot(at, plain.x_strides);
    y = IndexedPlan::dot(at, plain.y_strides);
    return i;
  }
  /// The offset in y of sorted position i.
  __device__ std::int64_t y_offset(std::int64_t i) const {
    std::int64_t at[kMaxDims];
    indexed.coordinates(order[i], at);
    return IndexedPlan::dot(at, indexed.y_strides);
  }
};

/// Writes x = y for the last position of each run of equal keys.
template <class B>
__global__ void __launch_bounds__(kIndexThreads) write_last(SortedPlan plan, B* x, const B* y) {
  const std::int64_t thread = index_thread();
  if (thread >= plan.total) return;
  std::int64_t number, to, from;
  const std::int64_t i = plan.locate(thread, number, to, from);
  const std::uint64_t key = plan.keys[i];
  if (key == kInvalidKey || (i + 1 < plan.indexed.total && plan.keys[i + 1] == key)) return;
  x[static_cast<std::int64_t>(key) + to] = y[from + plan.y_offset(i)];
}

template <class C>
__device__ __forceinline__ C combined(Combine op, C a, C b) {
  using Wrapping =
      std::conditional_t<std::is_integral_v<C>, std::uint64_t, C>;  // signed overflow is undefined
  switch (op) {
    case Combine::sum:
      return static_cast<C>(static_cast<Wrapping>(a) + static_cast<Wrapping>(b));
    case Combine::product:
      return static_cast<C>(static_cast<Wrapping>(a) * static_cast<Wrapping>(b));
    case Combine::maximum:
      return b > a || b != b ? b : a;
    default:
      return b < a || b != b ? b : a;
  }
}

/// Combines the chunk of a run that starts at this thread's position. Threads of other positions return at
/// once. The result of a run that has one chunk is combined with its element of x. The results of longer runs
/// are written to `partials`, (partial_rows(positions), plain coordinates), which combine_partials reads.
template <class T, class X>
__global__ void __launch_bounds__(kIndexThreads)
    combine_runs(SortedPlan plan, Combine op, const std::int64_t* starts, X* partials, X* x, const T* y) {
  const std::int64_t thread = index_thread();
  if (thread >= plan.total) return;
  std::int64_t number, to, from;
  std::int64_t i = plan.locate(thread, number, to, from);
  const std::uint64_t key = plan.keys[i];
  const std::int64_t start = starts[i], next = i + kSegmentChunk, count = plan.indexed.total;
  if (key == kInvalidKey || (i - start) % kSegmentChunk != 0) return;
  const bool whole = i == start && (next >= count || plan.keys[next] != key);
  X* const result = whole ? x + static_cast<std::int64_t>(key) + to
                          : partials + partial_row(i, i == start) * plan.plain.total + number;
  const std::int64_t end = segment_end(plan.keys, i, next < count ? next : count);
  const auto element = [&] { return static_cast<X>(load(y[from + plan.y_offset(i)])); };
  X value = whole ? combined<X>(op, *result, element()) : element();
  while (++i < end) value = combined<X>(op, value, element());
  *result = value;
}

/// Combines the partial results of each split run with its element of x, in order. As in add_partials
/// (index.cuh), the threads of the first multiple of kSegmentChunk behind the run's start do this.
template <class X>
__global__ void __launch_bounds__(kIndexThreads)
    combine_partials(SortedPlan plan, Combine op, WideDivisor plain, std::int64_t total,
                     const std::int64_t* starts, const X* partials, X* x) {
  const std::int64_t thread = index_thread();
  if (thread >= total) return;
  std::int64_t number;
  const std::int64_t at = (split(thread, plain, number) + 1) * kSegmentChunk, start = starts[at],
                     count = plan.indexed.total;
  const std::uint64_t key = plan.keys[at];
  std::int64_t i = start + kSegmentChunk;
  if (key == kInvalidKey || start < at - kSegmentChunk || start == at || i >= count || plan.keys[i] != key)
    return;
  std::int64_t coordinates[kMaxDims];
  plan.plain.coordinates(number, coordinates);
  X* const to = x + static_cast<std::int64_t>(key) + IndexedPlan::dot(coordinates, plan.plain.x_strides);
  const auto partial = [&](bool first) {
    return partials[partial_row(first ? start : i, first) * plan.plain.total + number];
  };
  X value = combined<X>(op, *to, partial(true));
  for (; i < count && plan.keys[i] == key; i += kSegmentChunk) value = combined<X>(op, value, partial(false));
  *to = value;
}

/// True if x and y can be accessed in packs of V elements: the last loop dimension is dense, no index array
/// depends on it, and all rows are aligned.
template <class B>
bool takes_packs(const Indexed& at, const void* x, const void* y) {
  constexpr int V = 16 / sizeof(B);
  const int last = at.ndim - 1;
  if (last < at.end || at.x_strides[last] != 1 || at.y_strides[last] != 1 || at.sizes[last] % V != 0 ||
      !aligned<B, V>(x) || !aligned<B, V>(y))
    return false;
  for (int d = 0; d < last; ++d)
    if (at.x_strides[d] % V != 0 || at.y_strides[d] % V != 0) return false;
  for (int k = 0; k < at.count; ++k)
    if (at.index[k].x_stride % V != 0) return false;
  return true;
}
/// The same elements counted in packs of V.
inline Indexed in_packs(Indexed at, int V) {
  const int last = at.ndim - 1;
  at.sizes[last] /= V;
  for (int d = 0; d < last; ++d) at.x_strides[d] /= V, at.y_strides[d] /= V;
  for (int k = 0; k < at.count; ++k) at.index[k].x_stride /= V;
  return at;
}

/// Sorts the positions and calls run(plan).
template <class F>
void with_sorted(const LaunchContext& context, const Indexed& at, const F& run) {
  // Coordinates of the plain dimensions must address different elements of x, because threads write them without
  // an order. An expanded index array does not depend on the dimension that it replaces, whose stride in x is 0.
  int begin = at.first, stop = at.end;
  for (int d = 0; d < at.ndim; ++d)
    if (at.x_strides[d] == 0 && at.sizes[d] > 1) begin = std::min(begin, d), stop = std::max(stop, d + 1);
  const IndexedPlan indexed(at, begin, stop, true);
  IndexedPlan plain(at, 0, begin, false);
  for (int d = stop; d < at.ndim; ++d) plain.append(at, d);
  std::int64_t inner = 1;
  for (int d = stop; d < at.ndim; ++d) inner *= at.sizes[d];
  const Sorted sorted(OffsetKey{indexed}, indexed.total, context);
  run(SortedPlan{indexed, plain, WideDivisor(inner), WideDivisor(indexed.total), indexed.total * plain.total,
                 sorted.keys(), sorted.positions()});
}

template <class B, bool kWrite>
void launch_move(const LaunchContext& context, const Indexed& at, void* x, void* y) {
  const IndexedPlan plan(at, 0, at.ndim, true);
  launch(&move_elements<B, kWrite>, index_blocks(plan.total), kIndexThreads, 0, stream_of(context), plan,
         static_cast<B*>(x), static_cast<B*>(y));
}
template <class B>
void launch_write_last(const LaunchContext& context, const Indexed& at, void* x, const void* y) {
  with_sorted(context, at, [&](const SortedPlan& plan) {
    launch(&write_last<B>, index_blocks(plan.total), kIndexThreads, 0, stream_of(context), plan,
           static_cast<B*>(x), static_cast<const B*>(y));
  });
}

template <class B>
void launch_indexed_read(const LaunchContext& context, const IndexedReadArgs& a) {
  void* const x = const_cast<void*>(a.x.address());  // a kernel that only reads does not write it
  if (takes_packs<B>(a.at, x, a.y.address()))
    launch_move<Bits16, false>(context, in_packs(a.at, 16 / sizeof(B)), x, a.y.address());
  else launch_move<B, false>(context, a.at, x, a.y.address());
}
template <class B>
void launch_indexed_write(const LaunchContext& context, const IndexedWriteArgs& a) {
  void* const y = const_cast<void*>(a.y.address());
  if (takes_packs<B>(a.at, a.x.address(), y)) {
    const Indexed at = in_packs(a.at, 16 / sizeof(B));
    if (a.unique) launch_move<Bits16, true>(context, at, a.x.address(), y);
    else launch_write_last<Bits16>(context, at, a.x.address(), y);
  } else if (a.unique) {
    launch_move<B, true>(context, a.at, a.x.address(), y);
  } else {
    launch_write_last<B>(context, a.at, a.x.address(), y);
  }
}
template <class T>
void launch_indexed_combine(const LaunchContext& context, const IndexedCombineArgs& a) {
  using X = Compute<T>;
  with_sorted(context, a.at, [&](const SortedPlan& plan) {
    const cudaStream_t stream = stream_of(context);
    const std::int64_t count = plan.indexed.total, plain = plan.plain.total;
    const Scratch<std::int64_t> starts(context.device, count);
    const Scratch<X> partials(context.device, partial_rows(count) * plain);
    launch(&find_starts<>, index_blocks(count), kIndexThreads, 0, stream, count, plan.keys, starts.data());
    launch(&combine_runs<T, X>, index_blocks(plan.total), kIndexThreads, 0, stream, plan, a.op, starts.data(),
           partials.data(), a.x.as<X>(), a.y.as<T>());
    const std::int64_t total = (count - 1) / kSegmentChunk * plain;
    if (total == 0) return;
    launch(&combine_partials<X>, index_blocks(total), kIndexThreads, 0, stream, plan, a.op,
           WideDivisor(plain), total, starts.data(), partials.data(), a.x.as<X>());
  });
}

}  // namespace tapestry::kernels::cuda
