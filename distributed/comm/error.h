#pragma once
// Errors of communication between ranks.
#include "tapestry/core/error.h"

namespace tapestry::distributed {

// clang-format off
class DistributedError : public Error { using Error::Error; };             ///< a collective, a store or a rank failed
class TimeoutError : public DistributedError { using DistributedError::DistributedError; };  ///< not done before the deadline
// clang-format on

}  // namespace tapestry::distributed
