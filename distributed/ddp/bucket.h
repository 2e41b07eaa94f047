#pragma once
// Which parameters travel together. Not in tapestry.h: internal to the reducer.
#include <cstddef>
#include <span>
#include <vector>

#include "tapestry/core/device.h"
#include "tapestry/core/dtype.h"

namespace tapestry::distributed {

struct BucketParameter {
  std::size_t bytes = 0;
  DType dtype = DType::f32;
  Device device;
};

/// Fills buckets with parameters in the given order of indices, one open bucket a dtype and device; a bucket
/// is closed when it holds `first_bytes` (the first to be closed) or `cap_bytes` (all others). So the first
/// bucket is on its way early, and the others are large enough to use the link (Li et al., "PyTorch
/// distributed: experiences on accelerating data parallel training", VLDB 2020, section 3.2.3). Buckets come
/// in the order in which their last parameter does.
std::vector<std::vector<int>> assign_buckets(std::span<const BucketParameter> parameters,
                                             std::span<const int> order, std::size_t first_bytes,
                                             std::size_t cap_bytes);

}  // namespace tapestry::distributed
