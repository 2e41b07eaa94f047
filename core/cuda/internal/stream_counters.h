#pragma once
// Counters in device memory with which the blocks of one launch find out which of them is the last, so that
// it can combine the results of all without a second launch.
#include <cstdint>

#include "tapestry/core/stream.h"

namespace tapestry::cuda {

inline constexpr std::int64_t kStreamCounters = 1024;

/// The kStreamCounters counters of a CUDA stream. They are 0 between kernels: a kernel that has changed one
/// sets it back to 0 before it ends, so no launch is needed to clear them. Kernels of one stream run one after
/// another, and each stream has its own counters. Those of a captured step are its own stream's, whatever
/// stream it is replayed on.
std::uint32_t* stream_counters(const Stream& stream);

}  // namespace tapestry::cuda
