#pragma once
// Errors that a device finds in its work after the call that gave it the work has returned: an index out of
// range, say. They are thrown where the host next waits for that work. Not in tapestry.h: for operations.
#include <cstdint>
#include <functional>

#include "tapestry/core/stream.h"

namespace tapestry {

/// `check` is called, and may throw, when the host has next waited for the stream: by Stream::synchronize(),
/// synchronize(device) or a copy to the host. At once for a CPU's.
void defer_check(const Stream& stream, std::function<void()> check);

namespace detail {
/// How many checks there have been so far.
std::uint64_t count_deferred_checks();
/// The host has waited for `stream`, or (null) for all streams of the device. All their checks of the first
/// `known` are called, those that there were before it waited: later ones, of other threads, may be of work
/// that was not waited for. The first exception is thrown.
void run_deferred_checks(Device device, const Stream* stream, std::uint64_t known);
/// For tests, when the devices are replaced.
void forget_deferred_checks();
}  // namespace detail

}  // namespace tapestry
