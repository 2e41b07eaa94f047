#pragma once
// The times of one backward pass under DDP, and how much communication it hid.
#include <cstdint>
#include <string>
#include <vector>

namespace tapestry::distributed {

/// The times of one bucket, in seconds since backward began.
struct BucketReport {
  std::string name;
  std::size_t bytes = 0;
  double posted = 0;    ///< when its last gradient was ready and all earlier buckets had been posted
  double started = 0;   ///< when the transport began to reduce it
  double finished = 0;  ///< when the transport finished
};

struct DdpReport {
  double backward_s = 0;       ///< computing gradients, without the wait at the end
  double communication_s = 0;  ///< the sum of all buckets' started-to-finished times
  double hidden_s = 0;         ///< the part of communication_s during which gradients were computed
  double exposed_s = 0;        ///< waiting for communication after the last gradient
  std::vector<BucketReport> buckets;
  /// A table with one line per bucket.
  std::string str() const;
};

}  // namespace tapestry::distributed
