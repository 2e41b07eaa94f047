#pragma once
// Sorts rows for sort, topk and permutations, and finds the positions of equal indices. Elements become
// 64-bit keys with positions. So the kernels do not depend on the dtype, and every sort is stable. Tiles are
// sorted in shared memory by a bitonic network (Batcher 1968), then runs are merged pairwise. In a merge, the
// rank of an element is its index in its own run plus the number of smaller elements in the other run, found
// by binary search. If only the first k elements of a row are wanted and k is small, each tile keeps k
// elements, and the kept elements are sorted again instead of merged.
#include <algorithm>
#include <utility>

#include "tapestry/kernels/cuda/copy.cuh"
#include "tapestry/kernels/cuda/dims.cuh"
#include "tapestry/kernels/cuda/launch_context.cuh"
#include "tapestry/kernels/ops/sort.h"
#include "tapestry/kernels/scratch.h"
#include "tapestry/kernels/slot.h"
#include "tapestry/kernels/sort_key.h"

namespace tapestry::kernels::cuda {

inline constexpr int kSortTile = 1024;
inline constexpr int kSortThreads = 256;

inline unsigned sort_blocks(std::int64_t threads) {
  return static_cast<unsigned>((threads + kSortThreads - 1) / kSortThreads);
}
__device__ __forceinline__ std::int64_t sort_thread() {
  return static_cast<std::int64_t>(blockIdx.x) * kSortThreads + threadIdx.x;
}

struct KeyAt {
  std::uint64_t key;
  std::int64_t position;
};
__device__ __forceinline__ bool before(const KeyAt& a, const KeyAt& b) {
  return a.key < b.key || (a.key == b.key && a.position < b.position);
}

/// Computes keys[i] = key(i) for i in [0, n).
template <class Key>
__global__ void __launch_bounds__(kSortThreads) encode_keys(Key key, std::int64_t n, std::uint64_t* keys) {
  const std::int64_t i = sort_thread();
  if (i < n) keys[i] = key(i);
}

struct SortTiles {
  WideDivisor tiles;  // per row
  std::int64_t n;     // keys per row
  std::int64_t keep;  // keys of each tile that are written
  std::int64_t kept;  // keys per row that are written by all tiles
  const std::uint64_t* keys;
  const std::int64_t* positions;  // null if the position of a key is its index in the row
  std::uint64_t* to_keys;
  std::int64_t* to_positions;
};

/// Sorts one tile per block and writes its first `keep` elements.
template <class = void>
__global__ void __launch_bounds__(kSortThreads) sort_tiles(SortTiles s) {
  __shared__ std::uint64_t key[kSortTile];
  __shared__ std::int64_t position[kSortTile];
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const auto row = static_cast<std::int64_t>(s.tiles.divide(blockIdx.x));
  const std::int64_t tile = blockIdx.x - row * static_cast<std::int64_t>(s.tiles.value),
                     first = tile * kSortTile, rest = s.n - first;
  const int count = rest < kSortTile ? static_cast<int>(rest) : kSortTile;
  int size = 2;  // the length of the network, a power of two
  while (size < count) size *= 2;
  for (int i = thread; i < size; i += threads) {
    const std::int64_t from = row * s.n + first + i;
    key[i] = i < count ? s.keys[from] : ~std::uint64_t{0};
    position[i] = i >= count ? INT64_MAX : s.positions ? s.positions[from] : first + i;
  }
  for (int run = 2; run <= size; run *= 2)
    for (int distance = run / 2; distance > 0; distance /= 2) {
      __syncthreads();
      for (int pair = thread; pair < size / 2; pair += threads) {
        const int i = 2 * pair - (pair & (distance - 1)), j = i + distance;
        const KeyAt a{key[i], position[i]}, b{key[j], position[j]};
        if (before(b, a) == ((i & run) == 0)) {
          key[i] = b.key, position[i] = b.position;
          key[j] = a.key, position[j] = a.position;
        }
      }
    }
  __syncthreads();
  const std::int64_t to = row * s.kept + tile * s.keep;
  const int keep = s.keep < count ? static_cast<int>(s.keep) : count;
  for (int i = thread; i < keep; i += threads) {
    s.to_keys[to + i] = key[i];
    s.to_positions[to + i] = position[i];
  }
}

/// Merges adjacent runs of `run` elements of each row pairwise, one thread per element.
template <class = void>
__global__ void __launch_bounds__(kSortThreads)
    merge_runs(std::int64_t total, WideDivisor n, std::int64_t run, const std::uint64_t* keys,
               const std::int64_t* positions, std::uint64_t* to_keys, std::int64_t* to_positions) {
  const std::int64_t thread = sort_thread();
  if (thread >= total) return;
  const auto length = static_cast<std::int64_t>(n.value);
  const std::int64_t row = static_cast<std::int64_t>(n.divide(static_cast<std::uint64_t>(thread))) * length;
  const KeyAt own{keys[thread], positions[thread]};
  const std::int64_t i = thread - row, which = i / run, start = which / 2 * 2 * run;
  std::int64_t low = which % 2 ? start : start + run, high = low + run;  // the other run
  low = low < length ? low : length, high = high < length ? high : length;
  const std::int64_t other = low;
  while (low < high) {
    const std::int64_t middle = (low + high) / 2;
    if (before({keys[row + middle], positions[row + middle]}, own)) low = middle + 1;
    else high = middle;
  }
  const std::int64_t to = row + start + (i - which * run) + (low - other);
  to_keys[to] = own.key;
  to_positions[to] = own.position;
}

/// Holds the sorted keys of `rows` rows of n keys, and the position of each key in its row. Only the first
/// `keep` keys of a row are sure to be there.
class Sorted {
 public:
  /// key(i) is evaluated on the GPU. Row r has the keys r * n, ..., r * n + n - 1.
  template <class Key>
  Sorted(const Key& key, std::int64_t n, const LaunchContext& context, std::int64_t rows, std::int64_t keep)
      : length_(n), keys_(context.device, 2 * rows * n), positions_(context.device, 2 * rows * n) {
    if (n == 0 || rows == 0) return;
    const std::int64_t half = rows * n;
    std::int64_t to = half;
    launch(&encode_keys<Key>, sort_blocks(half), kSortThreads, 0, stream_of(context), key, half,
           keys_.data());
    const bool few = keep <= kSortTile / 2;
    bool moved = false;
    do {
      const std::int64_t tiles = (length_ + kSortTile - 1) / kSortTile,
                         last = length_ - (tiles - 1) * kSortTile;
      const std::int64_t kept = few ? std::min<std::int64_t>(keep, kSortTile) : kSortTile,
                         total = (tiles - 1) * kept + std::min(kept, last);
      unsigned threads = 32;  // short rows need fewer
      while (threads < kSortThreads && 2 * threads < length_) threads *= 2;
      launch(&sort_tiles<>, static_cast<unsigned>(rows * tiles), threads, 0, stream_of(context),
             SortTiles{WideDivisor(tiles), length_, kept, total, keys_.data() + at_,
                       moved ? positions_.data() + at_ : nullptr, keys_.data() + to, positions_.data() + to});
      std::swap(at_, to);
      sorted_ = tiles == 1;
      length_ = total;
      moved = true;
    } while (few && !sorted_);
    for (std::int64_t run = kSortTile; run < length_ && !sorted_; run *= 2, std::swap(at_, to))
      launch(&merge_runs<>, sort_blocks(rows * length_), kSortThreads, 0, stream_of(context), rows * length_,
             WideDivisor(length_), run, keys_.data() + at_, positions_.data() + at_, keys_.data() + to,
             positions_.data() + to);
  }
  /// Sorts one row and keeps all of it.
  template <class Key>
  Sorted(const Key& key, std::int64_t n, const LaunchContext& context) : Sorted(key, n, context, 1, n) {}

  const std::uint64_t* keys() const { return keys_.data() + at_; }
  const std::int64_t* positions() const { return positions_.data() + at_; }
  /// The number of keys per row that are stored.
  std::int64_t length() const { return length_; }

 private:
  std::int64_t length_, at_ = 0;
  bool sorted_ = false;
  Scratch<std::uint64_t> keys_;
  Scratch<std::int64_t> positions_;
};

// ---- the family's slots

/// The sort key of an element. `flip` inverts the keys for the descending order.
template <class T>
struct ElementKey {
  const T* x;
  std::uint64_t flip;
  __device__ std::uint64_t operator()(std::int64_t i) const { return sort_key(load(x[i])) ^ flip; }
};

struct TakeSorted {
  std::int64_t total;  // elements to write
  WideDivisor k;       // elements to write per row
  std::int64_t first;  // their first index among the sorted elements of the row
  std::int64_t n, length;
  const std::uint64_t* keys;  // null unless NaN is propagated
  std::uint64_t nan_key;
  const std::int64_t* positions;
  std::int64_t* indices;
};
/// Writes positions and elements of sorted rows. If NaN is propagated and the row has NaN, writes the first
/// NaN. The NaNs are at the end of the sorted row.
template <class B>
__global__ void __launch_bounds__(kSortThreads) take_sorted(TakeSorted t, const B* x, B* values) {
  const std::int64_t thread = sort_thread();
  if (thread >= t.total) return;
  const auto row = static_cast<std::int64_t>(t.k.divide(static_cast<std::uint64_t>(thread)));
  std::int64_t at = t.first + thread - row * static_cast<std::int64_t>(t.k.value);
  if (t.keys && t.keys[row * t.length + t.length - 1] == t.nan_key) {
    std::int64_t low = 0, high = t.length - 1;
    while (low < high) {
      const std::int64_t middle = (low + high) / 2;
      if (t.keys[row * t.length + middle] < t.nan_key) low = middle + 1;
      else high = middle;
    }
    at = low;
  }
  const std::int64_t from = t.positions[row * t.length + at];
  if (t.indices) t.indices[thread] = from;
  if (values) values[thread] = x[row * t.n + from];
}

template <class T>
void launch_take(const Sorted& sorted, std::int64_t rows, std::int64_t n, std::int64_t first, std::int64_t k,
                 bool propagate_nan, const ConstArray& x, const MutableArray& values,
                 const MutableArray& indices, const LaunchContext& context) {
  using B = Bits<T>;
  const TakeSorted t{rows * k,
                     WideDivisor(k),
                     first,
                     n,
                     sorted.length(),
                     propagate_nan ? sorted.keys() : nullptr,
                     kNaNKey<Compute<T>>,
                     sorted.positions(),
                     indices.as<std::int64_t>()};
  launch(&take_sorted<B>, sort_blocks(t.total), kSortThreads, 0, stream_of(context), t,
         static_cast<const B*>(x.address()), static_cast<B*>(values.address()));
}

template <class T>
void launch_sort(const LaunchContext& context, const SortArgs& a) {
  if (a.rows == 0) return;
  const ElementKey<T> key{a.x.as<T>(), a.descending ? ~std::uint64_t{0} : 0};
  const Sorted sorted(key, a.n, context, a.rows, a.k);
  launch_take<T>(sorted, a.rows, a.n, 0, a.k, false, a.x, a.values, a.indices, context);
}

template <class T>
void launch_kthvalue(const LaunchContext& context, const KthvalueArgs& a) {
  if (a.rows == 0) return;
  const bool nan = a.propagate_nan && is_floating(dtype_of<T>);
  const Sorted sorted(ElementKey<T>{a.x.as<T>(), 0}, a.n, context, a.rows, nan ? a.n : a.k + 1);
  launch_take<T>(sorted, a.rows, a.n, a.k, 1, nan, a.x, a.values, a.indices, context);
}

/// Sets y[r, index[r, j]] = x[r, j].
template <class B>
__global__ void __launch_bounds__(kSortThreads)
    put_elements(std::int64_t total, WideDivisor k, std::int64_t n, const std::int64_t* index, const B* x,
                 B* y) {
  const std::int64_t thread = sort_thread();
  if (thread >= total) return;
  const auto row = static_cast<std::int64_t>(k.divide(static_cast<std::uint64_t>(thread)));
  y[row * n + index[thread]] = x[thread];
}
template <class T>
void launch_put(const LaunchContext& context, const PutArgs& p) {
  using B = Bits<T>;
  const std::int64_t total = p.rows * p.k;
  if (total == 0) return;
  launch(&put_elements<B>, sort_blocks(total), kSortThreads, 0, stream_of(context), total, WideDivisor(p.k),
         p.n, p.index.as<std::int64_t>(), reinterpret_cast<const B*>(p.x.as<T>()),
         reinterpret_cast<B*>(p.y.as<T>()));
}

}  // namespace tapestry::kernels::cuda
