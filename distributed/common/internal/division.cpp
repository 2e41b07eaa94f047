#include "tapestry/distributed/common/internal/division.h"

#include <algorithm>

namespace tapestry::distributed {
namespace {

// Parameters and chunks are aligned for the widest loads of CPUs and GPUs.
constexpr std::size_t kAlignment = 64;
std::int64_t padded(std::int64_t elements, DType dtype) {
  const auto unit = static_cast<std::int64_t>(kAlignment / dtype_size(dtype));
  return (elements + unit - 1) / unit * unit;
}

}  // namespace

Division::Division(std::span<const BucketParameter> parameters, std::span<const int> order,
                   std::size_t first_bytes, std::size_t cap_bytes, int ranks)
    : places_(parameters.size()) {
  for (std::vector<int>& members : assign_buckets(parameters, order, first_bytes, cap_bytes)) {
    DividedBucket b;
    const BucketParameter& first = parameters[static_cast<std::size_t>(members[0])];
    b.dtype = first.dtype;
    b.device = first.device;
    std::int64_t elements = 0;
    for (const int i : members) {
      const auto at = static_cast<std::size_t>(i);
      const auto numel = static_cast<std::int64_t>(parameters[at].bytes / dtype_size(b.dtype));
      places_[at] = {static_cast<int>(buckets_.size()), elements, numel};
      elements += padded(numel, b.dtype);
    }
    b.chunk = padded((elements + ranks - 1) / ranks, b.dtype);
    b.parameters = std::move(members);
    buckets_.push_back(std::move(b));
  }
}

ElementRange Division::part(int parameter, int rank) const {
  const Place& p = places_[static_cast<std::size_t>(parameter)];
  const std::int64_t chunk = buckets_[static_cast<std::size_t>(p.bucket)].chunk;
  const std::int64_t begin = std::clamp(chunk * rank - p.offset, std::int64_t{0}, p.numel);
  const std::int64_t end = std::clamp(chunk * (rank + 1) - p.offset, std::int64_t{0}, p.numel);
  return {begin, end - begin};
}

Tensor part_of(const Tensor& base, std::int64_t offset, const Shape& sizes, const Shape& strides) {
  const std::size_t element = dtype_size(base.dtype());
  return tapestry::detail::make_tensor(
      Storage::part(base.storage(), static_cast<std::size_t>(base.storage_offset() + offset) * element,
                    static_cast<std::size_t>(sizes.numel()) * element),
      base.dtype(), sizes, strides, 0);
}

Tensor releasable_tensor(std::int64_t elements, DType dtype, Device device, MemoryKind kind) {
  const std::size_t bytes = static_cast<std::size_t>(elements) * dtype_size(dtype);
  const StorageRef storage = Storage::releasable(device, bytes, nullptr);
  storage->acquire();
  const Tensor tensor = tapestry::detail::make_tensor(storage, dtype, {elements}, {1}, 0);
  tag_memory(tensor, kind);
  return tensor;
}

Tensor elements_of(const Tensor& dense, const ElementRange& range) {
  return part_of(dense, range.begin, {range.count}, {1});
}

Shape strides_in_bucket(const Tensor& parameter) {
  const bool dense = parameter.is_contiguous() || parameter.is_contiguous(MemoryFormat::channels_last);
  return dense ? parameter.strides() : contiguous_strides(parameter.sizes());
}

}  // namespace tapestry::distributed
