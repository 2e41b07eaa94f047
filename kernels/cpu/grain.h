#pragma once
// How much work a thread is worth.
#include <algorithm>
#include <cstdint>

#include "tapestry/core/parallel.h"

namespace tapestry::kernels::cpu {

/// Elements that one thread should have to itself at least: below, waking another costs more than it saves.
inline constexpr std::int64_t kGrain = 32768;

/// The grain of a loop each of whose steps is worth `work` elements.
constexpr std::int64_t grain_of(std::int64_t work) {
  return std::max<std::int64_t>(kGrain / std::max<std::int64_t>(work, 1), 1);
}

}  // namespace tapestry::kernels::cpu
