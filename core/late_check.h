#pragma once
// Errors that a device finds in its work after the call that gave it the work has returned: an index out of
// range, say. They are thrown where the host next waits for that work. Not in tapestry.h: for operations.
#include <functional>

#include "tapestry/core/stream.h"

namespace tapestry {

/// `check` is called, and may throw, when the host has next waited for the stream: by Stream::synchronize(),
/// synchronize(device) or a copy to the host. At once for a CPU's.
void check_later(const Stream& stream, std::function<void()> check);

namespace detail {
/// The host has waited for `stream`, or (null) for all streams of the device. All their checks are called;
/// the first exception is thrown.
void run_late_checks(Device device, const Stream* stream);
/// For tests, when the devices are replaced.
void forget_late_checks();
}  // namespace detail

}  // namespace tapestry
