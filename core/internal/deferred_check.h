#pragma once
// Deferred checks: errors that a GPU kernel finds after the call that launched it has returned, for example
// an index out of range. They are thrown when the host next waits for the kernel.
#include <cstdint>
#include <functional>

#include "tapestry/core/stream.h"

namespace tapestry {

/// Calls `check`, which may throw, after the host has next waited for `stream` in Stream::synchronize(),
/// synchronize(device) or a copy to the host. Calls it immediately if the stream is a CPU's.
void defer_check(const Stream& stream, std::function<void()> check);

namespace detail {
/// The number of checks deferred so far.
std::uint64_t count_deferred_checks();
/// Runs the pending checks of `stream`, or of all streams of the device if `stream` is null, after the host
/// has waited for them. `known` is count_deferred_checks() from before the wait: checks with a higher number
/// are skipped, because another thread may have deferred them for work that the wait did not cover. Rethrows
/// the first exception after all these checks have run.
void run_deferred_checks(Device device, const Stream* stream, std::uint64_t known);
/// Drops all pending checks. For tests that replace the devices.
void forget_deferred_checks();
}  // namespace detail

}  // namespace tapestry
