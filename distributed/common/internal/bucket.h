#pragma once
// Assigns parameters to buckets.
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
  bool alone = false;  ///< in a bucket of its own
};

/// Fills buckets with parameters in the given order of indices. There is one open bucket per dtype and
/// device. A bucket is closed when it has reached `cap_bytes`. The first one is closed already at
/// `first_bytes`. So communication starts early, and later buckets are large enough to use the bandwidth of
/// the link (Li et al., "PyTorch distributed: experiences on accelerating data parallel training", VLDB 2020,
/// section 3.2.3). Buckets are returned in the order of their last parameters.
std::vector<std::vector<int>> assign_buckets(std::span<const BucketParameter> parameters,
                                             std::span<const int> order, std::size_t first_bytes,
                                             std::size_t cap_bytes);

}  // namespace tapestry::distributed
