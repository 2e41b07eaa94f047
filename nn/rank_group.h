#pragma once
// What nn needs of the ranks that divide a parameter.
#include "tapestry/core/tensor.h"

namespace tapestry::nn {

/// Ranks that divide or copy a parameter: how many there are, which one is mine, and a sum.
class RankGroup {
 public:
  virtual ~RankGroup() = default;
  virtual int size() const = 0;
  virtual int rank(int replica) const = 0;
  /// Collective: adds `values` over the ranks in place, and waits. All ranks get the same bits. The values
  /// are on the device of the tensor that the rank stores.
  virtual void sum(int replica, const Tensor& values) const = 0;
  /// Identifies the ranks: objects with equal id() have the same ranks in the same order.
  virtual const void* id(int replica) const = 0;
};

}  // namespace tapestry::nn
