#pragma once
// Division: where each parameter lies in its bucket, and how the elements of the buckets are divided among
// ranks. Every rank has one contiguous chunk of each bucket, and all chunks of a bucket have the same size.
// So one reduce-scatter gives each rank the sums of its part, and one all-gather collects the parts
// (Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", 2020,
// sections 5.1 and 5.2).
#include <cstdint>
#include <span>
#include <vector>

#include "tapestry/core/memory_record.h"
#include "tapestry/core/tensor.h"
#include "tapestry/distributed/common/internal/bucket.h"

namespace tapestry::distributed {

/// Part of a parameter: `count` elements from element `begin` on, in the order of its memory.
struct ElementRange {
  std::int64_t begin = 0, count = 0;
};

struct DividedBucket {
  std::vector<int> parameters;
  DType dtype = DType::f32;
  Device device;
  std::int64_t chunk = 0;  ///< the elements of each rank: a multiple of 64 bytes
};

class Division {
 public:
  Division() = default;
  /// Makes buckets by assign_buckets(). Each parameter begins at a multiple of 64 bytes.
  Division(std::span<const BucketParameter> parameters, std::span<const int> order, std::size_t first_bytes,
           std::size_t cap_bytes, int ranks);

  const std::vector<DividedBucket>& buckets() const { return buckets_; }
  int bucket_of(int parameter) const { return places_[static_cast<std::size_t>(parameter)].bucket; }
  /// The position of the parameter's first element in its bucket.
  std::int64_t offset(int parameter) const { return places_[static_cast<std::size_t>(parameter)].offset; }
  /// The elements of the parameter that lie in the chunk of `rank`.
  ElementRange part(int parameter, int rank) const;

 private:
  struct Place {
    int bucket = 0;
    std::int64_t offset = 0, numel = 0;
  };
  std::vector<DividedBucket> buckets_;
  std::vector<Place> places_;  // by parameter
};

/// Tensors that share memory with `base` but have a version counter of their own: a change of one is not an
/// in-place change of `base` or of another part. `offset` is counted in elements of `base` from its first
/// one.
Tensor part_of(const Tensor& base, std::int64_t offset, const Shape& sizes, const Shape& strides);
/// An uninitialised tensor in one dimension whose memory can be released at once. The thread of a process
/// group may keep a reference to a tensor for a moment after the collective is done. `kind` is for the record
/// of memory.
Tensor releasable_tensor(std::int64_t elements, DType dtype, Device device, MemoryKind kind);
/// `count` elements of a dense tensor from element `begin` on, in the order of its memory, in one dimension.
Tensor elements_of(const Tensor& dense, const ElementRange& range);
/// The strides of the parameter in a bucket. Dense parameters keep their strides, so channels-last weights
/// keep their layout. Others become row-major.
Shape strides_in_bucket(const Tensor& parameter);

}  // namespace tapestry::distributed
