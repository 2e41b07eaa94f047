#pragma once
// What a running capture of a CUDA graph (core/cuda/capture.h) changes in the rest of the library: random
// numbers, deferred checks and pinned memory belong to the graph, and calls that a replay could not repeat
// are refused.
#include <cstdint>
#include <functional>
#include <vector>

#include "tapestry/core/device.h"
#include "tapestry/core/generator.h"
#include "tapestry/core/internal/deferred_check.h"
#include "tapestry/core/storage.h"

namespace tapestry {
class Tensor;
}

namespace tapestry::detail {

struct CaptureState {
  Device device;
  std::uint64_t stream = 0;           ///< id of the stream that is captured
  Generator* generator = nullptr;     ///< the only one whose numbers the step may draw
  const PhiloxRange* cell = nullptr;  ///< in device memory: seed and offset of the replay that runs
  std::uint64_t drawn = 0;            ///< how far the step is in the random stream, in counters
  std::uint64_t most_drawn = 0;       ///< the largest value of `drawn`
  /// Called on the host before each replay, for example to write a new learning rate to device memory.
  std::vector<std::function<void()>> before_replay;
  /// Deferred checks of the step, which become due again with each replay.
  std::shared_ptr<std::vector<DeferredCheck>> checks = std::make_shared<std::vector<DeferredCheck>>();
  /// Memory that copies in the graph read or write.
  std::vector<StorageRef> kept;
};

/// The capture that the calling thread runs, or null.
CaptureState* current_capture();
/// Sets it. At most one thread captures at a time.
void set_current_capture(CaptureState* state);

/// Throws CaptureError (core/cuda/capture.h) if the calling thread captures. `call` names what it called, and
/// `instead` says what to do.
void refuse_in_capture(const char* call, const char* instead);

/// The host is about to read elements of `t`, on which the results of `op` depend. Throws DeviceError if `t`
/// is on the meta device, and CaptureError if it is on a CUDA device and the calling thread captures.
void check_host_reads(const char* op, const Tensor& t);

/// Throws ValueError if a kernel would take the offset of `range` for that of a captured range although
/// nothing is captured. Launches of kernels that call current_range() check it.
void check_range(const char* op, const PhiloxRange& range);

/// Kernels report to check_captured_kernel() while it is on, as they report to a Timeline.
void watch_kernels(bool on);
/// Throws CaptureError if the calling thread captures and this kernel would not become part of the graph.
void check_captured_kernel(Device device, const char* name);

}  // namespace tapestry::detail
