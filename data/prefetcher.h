#pragma once
// Makes numbered things on worker threads and hands them out in order.
#include <cstdint>
#include <functional>
#include <memory>

namespace tapestry::data {

/// Calls `make(k)` for k = begin, ..., end-1 on `workers` threads (0: in next(), on the caller) and gives the
/// results in order. At most workers * ahead results are waiting or being made, so memory is bounded. The
/// destructor wakes and joins the workers; it waits at most for the calls of `make` that are under way.
class Prefetcher {
 public:
  using Make = std::function<std::shared_ptr<void>(std::int64_t)>;
  /// Throws ValueError unless workers >= 0 and ahead >= 1, Error when the system gives no more threads.
  Prefetcher(Make make, std::int64_t begin, std::int64_t end, int workers, int ahead);
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;
  /// The next result, or null after the last. Rethrows what `make` threw for it.
  std::shared_ptr<void> next();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tapestry::data
