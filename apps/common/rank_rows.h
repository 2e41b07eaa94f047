#pragma once
// What --live shows of each rank, or of each device of a process that is alone.
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <vector>

#include "tapestry/core/memory_record.h"
#include "tapestry/distributed/strategy/strategy.h"

namespace apps {

/// The bytes per MemoryKind.
using MemoryByKind = std::array<std::int64_t, tapestry::kNumMemoryKinds>;

/// What a rank says of its last step. The ranks send each other its bytes.
struct RankRow {
  std::int64_t step = 0;  ///< 0: none yet
  double loss = NAN, accuracy = NAN;
  double step_s = NAN;
  double waiting_s = NAN;  ///< the part of a step in which computation waited for communication
  MemoryByKind memory{};   ///< when the device held most
};

/// Measures memory and waiting. The kinds of memory are known only of what is allocated while this object
/// exists, so it must exist before the model.
class RankRows {
 public:
  /// Adds to `row` what this process's first device held, and what the last step waited.
  void complete(RankRow& row, const tapestry::distributed::Strategy& strategy);
  /// The memory of each device of this process.
  const std::vector<MemoryByKind>& memory() const { return memory_; }
  /// Call it after each step and each batch of an evaluation. It forgets earlier allocations, of which the
  /// record would otherwise keep all.
  void forget();

 private:
  bool due() const;

  tapestry::MemoryRecord record_;
  std::vector<MemoryByKind> memory_;
};

}  // namespace apps
