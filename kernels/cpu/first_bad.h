#pragma once
// Finds the first index out of range in a parallel loop. A thread of the loop cannot throw. So a kernel
// reports such an index here and goes on, and the operation throws when it reads the cell after the kernel
// (BadIndexCell in kernels/ops/index.h).
#include <algorithm>
#include <atomic>

#include "tapestry/kernels/ops/index.h"

namespace tapestry::kernels::cpu {

/// Takes positions from all threads. Its destructor lowers the cell to the smallest.
class FirstBad {
 public:
  explicit FirstBad(const BadIndexCell& to) : to_(to) {}
  ~FirstBad() {
    const std::int64_t first = first_.load();
    if (to_.cell && first != kNoBadIndex) *to_.cell = std::min(*to_.cell, to_.value(first));
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
  const BadIndexCell to_;
  std::atomic<std::int64_t> first_{kNoBadIndex};
};

}  // namespace tapestry::kernels::cpu
