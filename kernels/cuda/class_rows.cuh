#pragma once
// A Way is how the threads of a kernel share out rows of classes:
//
//   WarpWay     a row that is contiguous: a warp
//   BlockWay    a long one: a block
//   PartWay     a few long ones, which would leave most of the GPU idle: a row's parts have a block each
//   ColumnWay   rows whose classes lie `inner` apart: neighbouring threads have neighbouring rows, and 8 of
//               them share one
//
// Contiguous rows are read 16 bytes at a time, wherever they begin. way.walk<classes>() hands out batches of
// about so many classes; way.merge() joins what its threads know of a row, or of its part.
#include <algorithm>
#include <cstdint>

#include "tapestry/kernels/cuda/softmax.cuh"

namespace tapestry::kernels::cuda {

/// N classes, `step` apart.
template <int N>
struct StridedBatch {
  static constexpr int kSize = N;
  int first, step, end;
  std::int64_t inner;

  __device__ int class_of(int j) const { return first + j * step; }
  __device__ bool has(int j) const { return class_of(j) < end; }
  template <class T>
  __device__ void read(const T* row, float (&x)[N], float otherwise) const {
    UNROLL for (int j = 0; j < N; ++j) x[j] = has(j) ? load(row[class_of(j) * inner]) : otherwise;
  }
  template <class T>
  __device__ void write(T* row, const float (&x)[N]) const {
    UNROLL for (int j = 0; j < N; ++j) if (has(j)) row[class_of(j) * inner] = store<T>(x[j]);
  }
};

/// Packs of V neighbours, `step` apart.
template <int V, int kPacks>
struct PackBatch {
  static constexpr int kSize = V * kPacks;
  int first, step, end;

  __device__ int class_of(int j) const { return first + j / V * step + j % V; }
  __device__ bool has(int j) const { return class_of(j) < end; }
  template <class T>
  __device__ void read(const T* row, float (&x)[kSize], float otherwise) const {
    UNROLL for (int p = 0; p < kPacks; ++p) {
      const auto pack = unpacked(pack_or<V>(row + class_of(p * V), has(p * V), store<T>(otherwise)));
      UNROLL for (int j = 0; j < V; ++j) x[p * V + j] = pack.v[j];
    }
  }
  template <class T>
  __device__ void write(T* row, const float (&x)[kSize]) const {
    UNROLL for (int p = 0; p < kPacks; ++p) {
      if (!has(p * V)) break;
      Pack<T, V> pack;
      UNROLL for (int j = 0; j < V; ++j) pack.v[j] = store<T>(x[p * V + j]);
      *reinterpret_cast<Pack<T, V>*>(row + class_of(p * V)) = pack;
    }
  }
};

struct RowShape {
  std::int64_t rows, inner, tiles;
  int n;
  /// All arrays that are read and written in rows begin at the same distance from a multiple of 16 bytes, and
  /// rows are not too short for packs.
  bool packs = false;
  int parts = 0, part = 0;  // PartWay's: parts of a row, and the classes of each but the last
};

/// Of so many classes.
template <int kClasses, class T>
inline constexpr int kPacksOf = std::max(1, kClasses / static_cast<int>(16 / sizeof(T)));

/// Classes from `begin` to `end` of a row, which kThreads threads share.
template <int kThreads, int kPacks, class T, class F>
__device__ __forceinline__ void walk_packs(int begin, int end, const T* row, const F& f) {
  constexpr int V = 16 / sizeof(T);
  const int thread = static_cast<int>(threadIdx.x);
  const auto place = static_cast<int>(reinterpret_cast<std::uintptr_t>(row + begin) / sizeof(T) % V);
  const int head = begin + (place == 0 ? 0 : V - place), body = head + (end - head) / V * V;
  for (int first = head + thread * V; first < body; first += kThreads * V * kPacks)
    f(PackBatch<V, kPacks>{first, kThreads * V, body});
  const int before = head - begin, single = thread < before ? begin + thread : body + thread - before;
  if (single < end) f(StridedBatch<1>{single, 1, end, 1});
}

struct WarpWay {
  static constexpr int kThreads = 128, kBlocks = 8;
  std::int64_t row, base;
  bool inside, leads;  // the thread that writes what there is one of in a row

  __device__ explicit WarpWay(const RowShape& s)
      : row(static_cast<std::int64_t>(blockIdx.x) * 4 + threadIdx.y),
        base(row * s.n),
        inside(row < s.rows),
        leads(inside && threadIdx.x == 0) {}
  template <int kClasses, class T, class F>
  __device__ void walk(const RowShape& s, const T* row_data, const F& f) const {
    if (s.packs) return walk_packs<32, std::min(2, kPacksOf<kClasses, T>)>(0, s.n, row_data, f);
    for (int first = static_cast<int>(threadIdx.x); first < s.n; first += 32 * 8)
      f(StridedBatch<8>{first, 32, s.n, 1});
  }
  template <class Op>
  __device__ typename Op::State merge(typename Op::State s) const {
    return Op::template joined<RowThreads<32>>(s);
  }
};

/// Where RowShape::packs.
struct BlockWay {
  static constexpr int kThreads = 256, kBlocks = 6;
  std::int64_t row, base;
  bool inside, leads;

  __device__ explicit BlockWay(const RowShape& s)
      : row(blockIdx.x), base(row * s.n), inside(true), leads(threadIdx.x == 0) {}
  template <int kClasses, class T, class F>
  __device__ void walk(const RowShape& s, const T* row_data, const F& f) const {
    walk_packs<kThreads, kPacksOf<kClasses, T>>(0, s.n, row_data, f);
  }
  template <class Op>
  __device__ typename Op::State merge(typename Op::State s) const {
    return Op::template joined<RowThreads<kThreads>>(s);
  }
};

/// Where RowShape::packs.
struct PartWay {
  static constexpr int kThreads = 256, kBlocks = 6;
  std::int64_t row, base;
  int begin, end;
  bool inside, leads;

  __device__ explicit PartWay(const RowShape& s)
      : row(blockIdx.x / static_cast<unsigned>(s.parts)),
        base(row * s.n),
        begin(static_cast<int>(blockIdx.x % static_cast<unsigned>(s.parts)) * s.part),
        end(std::min(begin + s.part, s.n)),
        inside(true),
        leads(threadIdx.x == 0) {}
  template <int kClasses, class T, class F>
  __device__ void walk(const RowShape&, const T* row_data, const F& f) const {
    walk_packs<kThreads, kPacksOf<kClasses, T>>(begin, end, row_data, f);
  }
  template <class Op>
  __device__ typename Op::State merge(typename Op::State s) const {
    return Op::template joined<RowThreads<kThreads>>(s);
  }
};

struct ColumnWay {
  static constexpr int kThreads = 32 * kColumnThreads, kBlocks = 4;
  std::int64_t row, base;
  bool inside, leads;

  __device__ explicit ColumnWay(const RowShape& s) {
    const std::int64_t outer = blockIdx.x / s.tiles,
                       column = (blockIdx.x - outer * s.tiles) * 32 + threadIdx.x;
    row = outer * s.inner + column;
    base = outer * s.n * s.inner + column;
    inside = column < s.inner;
    leads = inside && threadIdx.y == 0;
  }
  template <int, class T, class F>
  __device__ void walk(const RowShape& s, const T*, const F& f) const {
    for (int first = static_cast<int>(threadIdx.y); first < s.n; first += kColumnThreads * 4)
      f(StridedBatch<4>{first, kColumnThreads, s.n, s.inner});
  }
  /// Called once.
  template <class Op>
  __device__ typename Op::State merge(typename Op::State s) const {
    SHARED(typename Op::State, parts, [kColumnThreads][32]);
    parts[threadIdx.y][threadIdx.x] = s;
    __syncthreads();
    s = parts[0][threadIdx.x];
    UNROLL for (int i = 1; i < kColumnThreads; ++i) s = Op::merge(s, parts[i][threadIdx.x]);
    return s;
  }
};

inline constexpr int kLongRow = 1024, kShortRow = 64;
/// Rows of more than kLongestKept classes (see softmax.cuh) have at most so many parts, of at least so many
/// classes.
inline constexpr int kMostParts = 32, kLeastPart = 4096;

/// Calls run.operator()<Way>(grid, block) with the way for rows of this shape, of which `arrays` are read and
/// written; null arrays do not count. Finds out about s.packs and s.parts.
template <class T, int K, class Run>
void with_way(RowShape& s, const void* const (&arrays)[K], const Run& run) {
  if (s.rows == 0) return;
  const auto blocks = [](std::int64_t n) { return static_cast<unsigned>(n); };
  if (s.inner > 1)
    return run.template operator()<ColumnWay>(blocks(s.rows / s.inner * s.tiles), dim3(32, kColumnThreads));
  bool together = true;
  const auto place = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16; };
  for (const void* p : arrays) together = together && (!p || place(p) == place(arrays[0]));
  s.packs = together && s.n >= kShortRow;
  if (s.rows < kFewRows && s.n > kLongestKept && together) {
    const auto wanted = static_cast<int>((kRowPartBlocks + s.rows - 1) / s.rows);
    s.part = std::max(kLeastPart, (s.n - 1) / std::min(wanted, kMostParts) + 1);
    s.parts = (s.n - 1) / s.part + 1;
    return run.template operator()<PartWay>(blocks(s.rows * s.parts), dim3(PartWay::kThreads));
  }
  if (s.n > kLongRow && together) run.template operator()<BlockWay>(blocks(s.rows), dim3(BlockWay::kThreads));
  else run.template operator()<WarpWay>(blocks((s.rows + 3) / 4), dim3(32, 4));
}

}  // namespace tapestry::kernels::cuda
