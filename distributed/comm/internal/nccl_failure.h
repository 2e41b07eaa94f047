#pragma once
// The error text of an NCCL call that failed. It needs no NCCL, so it is tested everywhere.
#include <string>

#include "tapestry/core/device.h"

namespace tapestry::distributed {

struct NcclFailure {
  std::string call;   ///< "ncclAllReduce"
  std::string error;  ///< "unhandled cuda error"
  std::string last;   ///< ncclGetLastError(), often about another call; may be empty
  int rank = 0;
  Device device;
};
/// Returns the text of an error, such as "ncclAllReduce failed on rank 1 (cuda:0): unhandled cuda error: ...;
/// what to do".
std::string nccl_failure_text(const NcclFailure& failure);

}  // namespace tapestry::distributed
