#pragma once
// The indices of a bag, for host and device code.
#include <cstdint>

#include "tapestry/core/philox.h"  // TAPESTRY_HOST_DEVICE

namespace tapestry::kernels {

/// How the indices are divided into bags (ops/embedding_bag.h).
struct Bags {
  const std::int64_t* offsets;  ///< null if each bag has per_bag indices
  std::int64_t count, bags, per_bag;
  bool has_end;

  /// The indices [begin, end) of a bag. `bad` is the position of an invalid offset, or -1; the bag is then
  /// empty.
  struct Range {
    std::int64_t begin, end, bad;
  };
  TAPESTRY_HOST_DEVICE Range range(std::int64_t bag) const {
    if (!offsets) return {bag * per_bag, (bag + 1) * per_bag, -1};
    const bool last = bag + 1 == bags;
    const std::int64_t begin = offsets[bag], end = last && !has_end ? count : offsets[bag + 1];
    std::int64_t bad = -1;
    if (begin < 0 || begin > count || (bag == 0 && begin != 0)) bad = bag;
    else if (end < begin || end > count || (last && end != count)) bad = bag + (last && !has_end ? 0 : 1);
    return bad >= 0 ? Range{0, 0, bad} : Range{begin, end, -1};
  }
};

}  // namespace tapestry::kernels
