#pragma once
// How much work justifies another thread.
#include <algorithm>
#include <cstdint>

#include "tapestry/core/parallel.h"

namespace tapestry::kernels::cpu {

/// The least number of elements per thread. With fewer, waking another thread costs more than it saves.
inline constexpr std::int64_t kGrain = 32768;

/// Returns the least number of steps per thread for a loop whose steps each cost as much as `work` elements.
constexpr std::int64_t grain_of(std::int64_t work) {
  return std::max<std::int64_t>(kGrain / std::max<std::int64_t>(work, 1), 1);
}

}  // namespace tapestry::kernels::cpu
