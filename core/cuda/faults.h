#pragma once
// Faults that a kernel finds when the host is already further on. Not in tapestry.h: for operations whose
// kernels check what they are given.
#include <functional>

#include "tapestry/core/stream.h"

namespace tapestry::cuda {

/// Calls `check` on this thread, once, when the stream has done what it has been given so far: when this
/// thread next waits for the stream or its device, by item() or a copy to the host say, or asks again here or
/// by throw_faults(). What it throws comes from there.
void check_behind(const Stream& stream, std::function<void()> check);
/// Makes those checks of this thread, the oldest first, whose work is done.
void throw_faults();

}  // namespace tapestry::cuda
