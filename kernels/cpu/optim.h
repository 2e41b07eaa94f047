#pragma once
// The loop of all optimizer steps on CPUs. Steps are limited by memory bandwidth, so each block of elements
// is read and written once. All parameters share one parallel loop, so that small parameters do not each
// start a parallel region.
#include <algorithm>
#include <vector>

#include "tapestry/core/parallel.h"
#include "tapestry/kernels/ops/optim.h"

namespace tapestry::kernels::cpu {

inline constexpr std::int64_t kStepBlock = 4096;  // elements
inline constexpr std::int64_t kStepGrain = 4;     // least number of blocks per thread

/// Calls f(index of item, first element, number of elements) for every block of every item. Blocks begin at
/// fixed places, so results do not depend on the number of threads.
template <class F>
void for_blocks(const StepItems& tensors, const F& f) {
  std::vector<std::int64_t> first(static_cast<std::size_t>(tensors.count) + 1,
                                  0);  // first block of each item
  for (std::int64_t i = 0; i < tensors.count; ++i)
    first[static_cast<std::size_t>(i) + 1] =
        first[static_cast<std::size_t>(i)] + (tensors.items[i].numel + kStepBlock - 1) / kStepBlock;
  parallel_for(first.back(), kStepGrain, [&](std::int64_t begin, std::int64_t end) {
    auto item = std::upper_bound(first.begin(), first.end(), begin) - first.begin() - 1;
    for (std::int64_t block = begin; block < end; ++block) {
      while (block >= first[static_cast<std::size_t>(item) + 1]) ++item;
      const std::int64_t at = (block - first[static_cast<std::size_t>(item)]) * kStepBlock;
      f(item, at, std::min(kStepBlock, tensors.items[item].numel - at));
    }
  });
}

}  // namespace tapestry::kernels::cpu
