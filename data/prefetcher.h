#pragma once
// A Prefetcher computes numbered results on worker threads and returns them in order.
#include <cstdint>
#include <functional>
#include <memory>

namespace tapestry::data {

/// Calls `make(k)` for k = begin, ..., end-1 on `workers` threads, and returns the results in order. With 0
/// workers, next() calls `make`. At most workers * ahead results are being made or waiting, so memory is
/// bounded. The destructor waits for calls of `make` in progress and joins the workers.
class Prefetcher {
 public:
  using Make = std::function<std::shared_ptr<void>(std::int64_t)>;
  /// Throws ValueError unless workers >= 0 and ahead >= 1. Throws Error if the system cannot start the
  /// threads.
  Prefetcher(Make make, std::int64_t begin, std::int64_t end, int workers, int ahead);
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;
  /// Returns the next result, or null after the last one. Rethrows the exception that `make` threw for it.
  std::shared_ptr<void> next();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tapestry::data
