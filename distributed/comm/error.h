#pragma once
// What goes wrong between ranks.
#include "tapestry/core/error.h"

namespace tapestry::distributed {

// clang-format off
class DistributedError : public Error { using Error::Error; };             ///< a collective, a store or a rank failed
class TimeoutError : public DistributedError { using DistributedError::DistributedError; };  ///< not in the time set
// clang-format on

}  // namespace tapestry::distributed
