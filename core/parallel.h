#pragma once
// Loops over the compute threads. Not in tapestry.h: for .cpp files.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "tapestry/core/threads.h"

namespace tapestry {

/// How parallel_for cuts [0, n): `count` pieces of `size` elements, the last one shorter. Depends on n, grain
/// and the number of threads alone, so that sums formed chunk by chunk are repeatable.
struct Partition {
  std::int64_t n = 0, size = 0;
  int count = 0;

  Partition(std::int64_t elements, std::int64_t grain, int threads) : n(std::max<std::int64_t>(elements, 0)) {
    grain = std::max<std::int64_t>(grain, 1);
    const std::int64_t wanted = std::min<std::int64_t>(threads, n / grain + (n % grain != 0));
    if (wanted <= 1) {
      size = n;
      count = n > 0;
      return;
    }
    size = n / wanted + (n % wanted != 0);
    // Pieces of many elements begin at multiples of 64: no cache line of the output is shared, vectors stay
    // aligned.
    if (grain >= 64) size = (size + 63) / 64 * 64;
    count = static_cast<int>(n / size + (n % size != 0));
  }
  std::int64_t begin(int chunk) const { return chunk * size; }
  std::int64_t end(int chunk) const { return std::min(n, (chunk + 1) * size); }
};

namespace detail {
/// Calls chunk(arg, i) for i in [0, count), each on a compute thread of its own where there is OpenMP, in
/// turn where there is not. Rethrows the exception of the lowest chunk that threw, after all have ended.
void run_chunks(int count, void (*chunk)(void* arg, int index), void* arg);
}  // namespace detail

/// Calls f(begin, end) for pieces that cover [0, n), at least about `grain` elements each, on
/// compute_threads() threads: as f(0, n) in the calling thread when that is one, when n <= grain, or inside
/// another parallel_for. What f throws is rethrown here.
template <class F>
void parallel_for(std::int64_t n, std::int64_t grain, F&& f) {
  if (n <= 0) return;
  if (n <= grain) return static_cast<void>(f(std::int64_t{0}, n));
  const Partition parts(n, grain, compute_threads());
  if (parts.count == 1) return static_cast<void>(f(std::int64_t{0}, n));
  struct Call {
    const Partition& parts;
    std::remove_reference_t<F>& f;
  } call{parts, f};
  detail::run_chunks(
      parts.count,
      [](void* arg, int i) {
        const Call& c = *static_cast<const Call*>(arg);
        c.f(c.parts.begin(i), c.parts.end(i));
      },
      std::addressof(call));
}

}  // namespace tapestry
