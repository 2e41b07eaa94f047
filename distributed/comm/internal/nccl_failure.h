#pragma once
// The text of an NCCL call that failed. Knows no NCCL, so that it is tested without.
#include <string>

#include "tapestry/core/device.h"

namespace tapestry::distributed {

struct NcclFailure {
  std::string call;   ///< "ncclAllReduce"
  std::string error;  ///< "unhandled cuda error"
  std::string last;   ///< what NCCL said last, often of another call; may be empty
  int rank = 0;
  Device device;
};
/// "ncclAllReduce failed on rank 1 (cuda:0): unhandled cuda error: ...; what to do"
std::string nccl_failure_text(const NcclFailure& failure);

}  // namespace tapestry::distributed
