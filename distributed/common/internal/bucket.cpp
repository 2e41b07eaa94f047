#include "tapestry/distributed/common/internal/bucket.h"

#include <algorithm>

namespace tapestry::distributed {

std::vector<std::vector<int>> assign_buckets(std::span<const BucketParameter> parameters,
                                             std::span<const int> order, std::size_t first_bytes,
                                             std::size_t cap_bytes) {
  struct Open {
    DType dtype;
    Device device;
    std::size_t bytes = 0;
    std::vector<int> parameters;
    std::size_t last = 0;  // the position of its last parameter in `order`
  };
  std::vector<Open> open, closed;
  for (std::size_t at = 0; at < order.size(); ++at) {
    const BucketParameter& p = parameters[static_cast<std::size_t>(order[at])];
    if (p.alone) {
      closed.push_back({p.dtype, p.device, p.bytes, {order[at]}, at});
      continue;
    }
    auto bucket = std::find_if(open.begin(), open.end(),
                               [&](const Open& b) { return b.dtype == p.dtype && b.device == p.device; });
    if (bucket == open.end()) bucket = open.insert(open.end(), Open{p.dtype, p.device, 0, {}, 0});
    bucket->parameters.push_back(order[at]);
    bucket->bytes += p.bytes;
    bucket->last = at;
    if (bucket->bytes >= (closed.empty() ? first_bytes : cap_bytes)) {
      closed.push_back(std::move(*bucket));
      open.erase(bucket);
    }
  }
  closed.insert(closed.end(), open.begin(), open.end());
  std::sort(closed.begin(), closed.end(), [](const Open& a, const Open& b) { return a.last < b.last; });
  std::vector<std::vector<int>> result;
  for (Open& b : closed) result.push_back(std::move(b.parameters));
  return result;
}

}  // namespace tapestry::distributed
