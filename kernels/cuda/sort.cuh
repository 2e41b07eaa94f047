#pragma once
// Stable sort of 64-bit keys with their positions, for permutations and to find the positions of each index.
// Tiles are sorted by counting (rank sort), then runs are merged pairwise. In a merge, the rank of an element
// is its index in its own run plus the number of smaller elements in the other run, found by binary search.
// The order is deterministic.
#include "tapestry/kernels/cuda/launch_context.cuh"
#include "tapestry/kernels/scratch.h"
#include "tapestry/kernels/slot.h"

namespace tapestry::kernels::cuda {

inline constexpr int kSortTile = 256;

struct KeyAt {
  std::uint64_t key;
  std::int64_t position;
};
__device__ __forceinline__ bool before(const KeyAt& a, const KeyAt& b) {
  return a.key < b.key || (a.key == b.key && a.position < b.position);
}

/// Sorts one tile per block by rank: a thread counts the elements before its own. key(i) is the key of
/// element i.
template <class Key>
__global__ void __launch_bounds__(kSortTile)
    sort_tiles(Key key, std::int64_t n, std::uint64_t* keys, std::int64_t* positions) {
  SHARED(std::uint64_t, tile, [kSortTile]);
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kSortTile;
  const int thread = static_cast<int>(threadIdx.x);
  const int count = n - first < kSortTile ? static_cast<int>(n - first) : kSortTile;
  const std::uint64_t own = thread < count ? key(first + thread) : 0;
  tile[thread] = own;
  __syncthreads();
  if (thread >= count) return;
  int place = 0;
  for (int i = 0; i < count; ++i) place += tile[i] < own || (tile[i] == own && i < thread);
  keys[first + place] = own;
  positions[first + place] = first + thread;
}

/// Merges adjacent runs of `run` elements pairwise, one thread per element.
template <class = void>
__global__ void __launch_bounds__(256)
    merge_runs(std::int64_t n, std::int64_t run, const std::uint64_t* keys, const std::int64_t* positions,
               std::uint64_t* to_keys, std::int64_t* to_positions) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * 256 + threadIdx.x;
  if (i >= n) return;
  const KeyAt own{keys[i], positions[i]};
  const std::int64_t which = i / run, start = which / 2 * 2 * run;
  std::int64_t low = which % 2 ? start : start + run, high = low + run;  // the other run
  low = low < n ? low : n, high = high < n ? high : n;
  const std::int64_t other = low;
  while (low < high) {
    const std::int64_t middle = (low + high) / 2;
    if (before({keys[middle], positions[middle]}, own)) low = middle + 1;
    else high = middle;
  }
  const std::int64_t to = start + (i - which * run) + (low - other);
  to_keys[to] = own.key;
  to_positions[to] = own.position;
}

/// Sorted keys, and the original position of each.
class Sorted {
 public:
  /// key(i) is evaluated on the GPU.
  template <class Key>
  Sorted(const Key& key, std::int64_t n, const LaunchContext& context)
      : keys_(context.device, 2 * n), positions_(context.device, 2 * n) {
    const cudaStream_t stream = stream_of(context);
    if (n == 0) return;
    const auto blocks = static_cast<unsigned>((n + 255) / 256);
    launch(&sort_tiles<Key>, blocks, kSortTile, 0, stream, key, n, keys_.data(), positions_.data());
    std::int64_t from = 0, to = n;
    for (std::int64_t run = kSortTile; run < n; run *= 2, std::swap(from, to))
      launch(&merge_runs<>, blocks, 256, 0, stream, n, run, keys_.data() + from, positions_.data() + from,
             keys_.data() + to, positions_.data() + to);
    at_ = from;
  }
  const std::uint64_t* keys() const { return keys_.data() + at_; }
  const std::int64_t* positions() const { return positions_.data() + at_; }

 private:
  Scratch<std::uint64_t> keys_;
  Scratch<std::int64_t> positions_;
  std::int64_t at_ = 0;
};

}  // namespace tapestry::kernels::cuda
