#pragma once
// parallel_for: loops over the compute threads.
#include <cstdint>
#include <memory>
#include <type_traits>

#include "tapestry/core/threads.h"

namespace tapestry {

/// How parallel_for divides [0, n): into `count` chunks of `size` elements, of which the last may be shorter.
/// Depends only on n, grain and the number of threads, so that sums formed per chunk are reproducible.
struct Partition {
  std::int64_t n = 0, size = 0;
  int count = 0;

  Partition(std::int64_t elements, std::int64_t grain, int threads) : n(elements > 0 ? elements : 0) {
    if (grain < 1) grain = 1;
    const std::int64_t grains = n / grain + (n % grain != 0);
    const std::int64_t wanted = grains < threads ? grains : threads;
    if (wanted <= 1) {
      size = n;
      count = n > 0;
      return;
    }
    size = n / wanted + (n % wanted != 0);
    // Large chunks begin at multiples of 64 elements, so that threads share no cache line of the output and
    // vector loads stay aligned.
    if (grain >= 64) size = (size + 63) / 64 * 64;
    count = static_cast<int>(n / size + (n % size != 0));
  }
  std::int64_t begin(int chunk) const { return chunk * size; }
  std::int64_t end(int chunk) const {
    const std::int64_t full = (chunk + 1) * size;
    return full < n ? full : n;
  }
};

namespace detail {
/// Calls chunk(arg, i) for each i in [0, count). With OpenMP, each call runs on its own compute thread;
/// without OpenMP, the calls run one after another. After all calls have ended, rethrows the exception of the
/// lowest i that threw.
void run_chunks(int count, void (*chunk)(void* arg, int index), void* arg);
}  // namespace detail

/// Calls f(begin, end) for chunks that cover [0, n), of about `grain` elements or more each, on up to
/// compute_threads() threads. Calls f(0, n) on the calling thread if there is one compute thread, if n <=
/// grain, or inside another parallel_for. Rethrows an exception of f.
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
