#pragma once
// Row mappings: which threads process a row of classes.
//
//   WarpPerRow    a contiguous row: one warp
//   BlockPerRow   a long contiguous row: one block
//   SplitRow      few long rows, which would leave most SMs idle: several blocks per row, one per part of the
//                 row
//   StridedRows   the classes of a row are `inner` elements apart: 32 adjacent threads have 32 adjacent rows,
//                 so accesses are coalesced, and 8 threads share each row
//
// Contiguous rows are read by 16-byte loads from any start address: scalar head, vector body, scalar tail.
// mapping.for_each_batch<kClasses>(shape, row, f) calls f with batches of about kClasses classes of this
// thread. mapping.merge<Op>() reduces the States of all threads of the row, or of its part.
#include <algorithm>
#include <cstdint>

#include "tapestry/kernels/cuda/softmax.cuh"

namespace tapestry::kernels::cuda {

/// A batch of N classes with stride `step`.
template <int N>
struct StridedBatch {
  static constexpr int kSize = N;
  int first, step, end;
  std::int64_t inner;

  __device__ int class_of(int j) const { return first + j * step; }
  __device__ bool has(int j) const { return class_of(j) < end; }
  template <class T>
  __device__ void read(const T* row, float (&x)[N], float otherwise) const {
#pragma unroll
    for (int j = 0; j < N; ++j) x[j] = has(j) ? load(row[class_of(j) * inner]) : otherwise;
  }
  template <class T>
  __device__ void write(T* row, const float (&x)[N]) const {
#pragma unroll
    for (int j = 0; j < N; ++j)
      if (has(j)) row[class_of(j) * inner] = store<T>(x[j]);
  }
};

/// A batch of kPacks packs of V contiguous classes, with stride `step` between packs.
template <int V, int kPacks>
struct PackBatch {
  static constexpr int kSize = V * kPacks;
  int first, step, end;

  __device__ int class_of(int j) const { return first + j / V * step + j % V; }
  __device__ bool has(int j) const { return class_of(j) < end; }
  template <class T>
  __device__ void read(const T* row, float (&x)[kSize], float otherwise) const {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const auto pack = unpacked(pack_or<V>(row + class_of(p * V), has(p * V), store<T>(otherwise)));
#pragma unroll
      for (int j = 0; j < V; ++j) x[p * V + j] = pack.v[j];
    }
  }
  template <class T>
  __device__ void write(T* row, const float (&x)[kSize]) const {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (!has(p * V)) break;
      Pack<T, V> pack;
#pragma unroll
      for (int j = 0; j < V; ++j) pack.v[j] = store<T>(x[p * V + j]);
      *reinterpret_cast<Pack<T, V>*>(row + class_of(p * V)) = pack;
    }
  }
};

struct RowShape {
  std::int64_t rows, inner, tiles;
  int n;
  /// True if all arrays that are read or written by rows have the same offset from a 16-byte boundary, and
  /// rows are long enough for vector loads.
  bool packs = false;
  int parts = 0, part = 0;  // SplitRow: parts per row, and classes per part (the last may have fewer)
};

/// The number of 16-byte packs in a batch of about kClasses classes.
template <int kClasses, class T>
inline constexpr int kPacksOf = std::max(1, kClasses / static_cast<int>(16 / sizeof(T)));

/// Visits classes [begin, end) of a row with kThreads threads: vector body first, then the scalar head and
/// tail.
template <int kThreads, int kPacks, class T, class F>
__device__ __forceinline__ void for_each_pack_batch(int begin, int end, const T* row, const F& f) {
  constexpr int V = 16 / sizeof(T);
  const int thread = static_cast<int>(threadIdx.x);
  const auto place = static_cast<int>(reinterpret_cast<std::uintptr_t>(row + begin) / sizeof(T) % V);
  const int head = begin + (place == 0 ? 0 : V - place), body = head + (end - head) / V * V;
  for (int first = head + thread * V; first < body; first += kThreads * V * kPacks)
    f(PackBatch<V, kPacks>{first, kThreads * V, body});
  const int before = head - begin, single = thread < before ? begin + thread : body + thread - before;
  if (single < end) f(StridedBatch<1>{single, 1, end, 1});
}

struct WarpPerRow {
  static constexpr int kThreads = 128, kBlocks = 8;
  std::int64_t row, base;
  bool inside, leader;  // leader: the thread that writes the results of the row

  __device__ explicit WarpPerRow(const RowShape& s)
      : row(static_cast<std::int64_t>(blockIdx.x) * 4 + threadIdx.y),
        base(row * s.n),
        inside(row < s.rows),
        leader(inside && threadIdx.x == 0) {}
  template <int kClasses, class T, class F>
  __device__ void for_each_batch(const RowShape& s, const T* row_data, const F& f) const {
    if (s.packs) return for_each_pack_batch<32, std::min(2, kPacksOf<kClasses, T>)>(0, s.n, row_data, f);
    for (int first = static_cast<int>(threadIdx.x); first < s.n; first += 32 * 8)
      f(StridedBatch<8>{first, 32, s.n, 1});
  }
  template <class Op>
  __device__ typename Op::State merge(typename Op::State s) const {
    return Op::template all_reduce<RowThreads<32>>(s);
  }
};

/// Requires RowShape::packs.
struct BlockPerRow {
  static constexpr int kThreads = 256, kBlocks = 6;
  std::int64_t row, base;
  bool inside, leader;

  __device__ explicit BlockPerRow(const RowShape& s)
      : row(blockIdx.x), base(row * s.n), inside(true), leader(threadIdx.x == 0) {}
  template <int kClasses, class T, class F>
  __device__ void for_each_batch(const RowShape& s, const T* row_data, const F& f) const {
    for_each_pack_batch<kThreads, kPacksOf<kClasses, T>>(0, s.n, row_data, f);
  }
  template <class Op>
  __device__ typename Op::State merge(typename Op::State s) const {
    return Op::template all_reduce<RowThreads<kThreads>>(s);
  }
};

/// Requires RowShape::packs.
struct SplitRow {
  static constexpr int kThreads = 256, kBlocks = 6;
  std::int64_t row, base;
  int begin, end;
  bool inside, leader;

  __device__ explicit SplitRow(const RowShape& s)
      : row(blockIdx.x / static_cast<unsigned>(s.parts)),
        base(row * s.n),
        begin(static_cast<int>(blockIdx.x % static_cast<unsigned>(s.parts)) * s.part),
        end(std::min(begin + s.part, s.n)),
        inside(true),
        leader(threadIdx.x == 0) {}
  template <int kClasses, class T, class F>
  __device__ void for_each_batch(const RowShape&, const T* row_data, const F& f) const {
    for_each_pack_batch<kThreads, kPacksOf<kClasses, T>>(begin, end, row_data, f);
  }
  template <class Op>
  __device__ typename Op::State merge(typename Op::State s) const {
    return Op::template all_reduce<RowThreads<kThreads>>(s);
  }
};

struct StridedRows {
  static constexpr int kThreads = 32 * kColumnThreads, kBlocks = 4;
  std::int64_t row, base;
  bool inside, leader;

  __device__ explicit StridedRows(const RowShape& s) {
    const std::int64_t outer = blockIdx.x / s.tiles,
                       column = (blockIdx.x - outer * s.tiles) * 32 + threadIdx.x;
    row = outer * s.inner + column;
    base = outer * s.n * s.inner + column;
    inside = column < s.inner;
    leader = inside && threadIdx.y == 0;
  }
  template <int, class T, class F>
  __device__ void for_each_batch(const RowShape& s, const T*, const F& f) const {
    for (int first = static_cast<int>(threadIdx.y); first < s.n; first += kColumnThreads * 4)
      f(StridedBatch<4>{first, kColumnThreads, s.n, s.inner});
  }
  /// Merges the States (partial results) of the threads that share a row. A kernel may call it only once,
  /// because the shared array is not protected by a second barrier.
  template <class Op>
  __device__ typename Op::State merge(typename Op::State s) const {
    __shared__ typename Op::State parts[kColumnThreads][32];
    parts[threadIdx.y][threadIdx.x] = s;
    __syncthreads();
    s = parts[0][threadIdx.x];
#pragma unroll
    for (int i = 1; i < kColumnThreads; ++i) s = Op::merge(s, parts[i][threadIdx.x]);
    return s;
  }
};

inline constexpr int kLongRow = 1024, kShortRow = 64;
/// Rows longer than kMaxRegisterRow classes (softmax.cuh) are split into at most kMaxParts parts of at least
/// kMinPart classes.
inline constexpr int kMaxParts = 32, kMinPart = 4096;

/// Calls run.operator()<Mapping>(grid, block) with the mapping for this shape. `arrays` are the arrays that
/// the kernel reads and writes by rows; null entries are ignored. Sets s.packs and s.parts.
template <class T, int K, class Run>
void with_row_mapping(RowShape& s, const void* const (&arrays)[K], const Run& run) {
  if (s.rows == 0) return;
  const auto blocks = [](std::int64_t n) { return static_cast<unsigned>(n); };
  if (s.inner > 1)
    return run.template operator()<StridedRows>(blocks(s.rows / s.inner * s.tiles), dim3(32, kColumnThreads));
  bool together = true;
  const auto place = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16; };
  for (const void* p : arrays) together = together && (!p || place(p) == place(arrays[0]));
  s.packs = together && s.n >= kShortRow;
  if (s.rows < kSplitRowsBelow && s.n > kMaxRegisterRow && together) {
    const auto wanted = static_cast<int>((kRowPartBlocks + s.rows - 1) / s.rows);
    s.part = std::max(kMinPart, (s.n - 1) / std::min(wanted, kMaxParts) + 1);
    s.parts = (s.n - 1) / s.part + 1;
    return run.template operator()<SplitRow>(blocks(s.rows * s.parts), dim3(SplitRow::kThreads));
  }
  if (s.n > kLongRow && together)
    run.template operator()<BlockPerRow>(blocks(s.rows), dim3(BlockPerRow::kThreads));
  else run.template operator()<WarpPerRow>(blocks((s.rows + 3) / 4), dim3(32, 4));
}

}  // namespace tapestry::kernels::cuda
