#pragma once
// Collects the first index out of range that any thread finds (see kernels/ops/index.h).
#include <algorithm>
#include <atomic>

#include "tapestry/kernels/ops/index.h"

namespace tapestry::kernels::cpu {

/// Collects positions from all threads. Its destructor lowers `*cell` to the smallest position, unless `cell`
/// is null.
class FirstBad {
 public:
  explicit FirstBad(std::int64_t* cell) : cell_(cell) {}
  ~FirstBad() {
    if (cell_) *cell_ = std::min(*cell_, first_.load());
  }
  FirstBad(const FirstBad&) = delete;
  FirstBad& operator=(const FirstBad&) = delete;

  /// Reports that the index at this position is out of range. Any thread may call it.
  void report(std::int64_t position) {
    std::int64_t seen = first_.load();
    while (position < seen && !first_.compare_exchange_weak(seen, position)) {
    }
  }

 private:
  std::int64_t* const cell_;
  std::atomic<std::int64_t> first_{kNoBadIndex};
};

}  // namespace tapestry::kernels::cpu
