#pragma once
// Indices out of range that a GPU kernel finds after the call that launched it has returned. They are thrown
// when the host next waits for the kernel. A device has one cell, in page-locked memory, for all calls. A
// kernel lowers it to its report, in which the number of its call comes before the position of the index. So
// the cell holds the report of the first call that found one.
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "tapestry/core/internal/call_cell.h"
#include "tapestry/core/stream.h"

namespace tapestry::detail {

/// The value of a device's cell in which nothing has been reported.
inline constexpr std::int64_t kNothingReported = std::numeric_limits<std::int64_t>::max();

/// For a call that is about to launch a kernel.
CallCell next_call_cell(Device device);

/// What to do if the kernel of a call has reported a position: `fail` throws.
struct DeferredCheck {
  std::int32_t call;
  std::function<void(std::int64_t position)> fail;
};

/// Calls check.fail after the host has next waited for `stream`, a CUDA stream, in Stream::synchronize(),
/// synchronize(device) or a copy to the host, if the call has reported then. In a captured step the check
/// becomes due with each replay.
void defer_check(const Stream& stream, DeferredCheck check);
/// Defers the checks of a replay.
void defer_checks(const Stream& stream, std::shared_ptr<const std::vector<DeferredCheck>> checks);

/// The number of times that checks were deferred so far.
std::uint64_t count_deferred_checks();
/// Called after the host has waited for `stream`, or for all streams of the device if it is null. Throws if
/// the device's cell has a report, which it clears. Otherwise forgets the stream's checks. `known` is
/// count_deferred_checks() from before the wait: checks with a higher number stay, because another thread may
/// have deferred them for work that the wait did not cover.
void run_deferred_checks(Device device, const Stream* stream, std::uint64_t known);
/// Drops all pending checks. For tests that replace the devices.
void forget_deferred_checks();

}  // namespace tapestry::detail
