#pragma once
// What one backward pass under DDP cost, and how much of the communication it hid.
#include <cstdint>
#include <string>
#include <vector>

namespace tapestry::distributed {

/// One bucket. Times are seconds since backward began.
struct BucketReport {
  std::string name;
  std::size_t bytes = 0;
  double posted = 0;    ///< its last gradient was ready, and those before it were posted
  double started = 0;   ///< the transport began with it
  double finished = 0;  ///< and ended
};

struct DdpReport {
  double backward_s = 0;       ///< computing gradients, without waiting at the end
  double communication_s = 0;  ///< the transport at work on buckets
  double hidden_s = 0;         ///< of it, while gradients were still computed
  double exposed_s = 0;        ///< waiting for it after the last gradient
  std::vector<BucketReport> buckets;
  /// A table, a bucket a line.
  std::string str() const;
};

}  // namespace tapestry::distributed
