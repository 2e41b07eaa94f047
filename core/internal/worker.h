#pragma once
// Device workers: one persistent compute thread per logical device. DataParallel, the pipeline and the
// optimizers share these threads for all work that does not run on the caller's thread.
#include <functional>
#include <future>
#include <span>

#include "tapestry/core/device.h"

namespace tapestry {

/// A thread that runs tasks in the order of submission.
class DeviceWorker {
 public:
  virtual ~DeviceWorker() = default;

  /// Queues `task`. It runs with a copy of the caller's Context and with the compute threads of one device.
  /// The future's get() rethrows an exception of the task; the future's destructor does not wait. A call from
  /// the worker's own thread runs the task immediately, because waiting for a queued task would deadlock
  /// there. Throws Error if the program is ending.
  virtual std::future<void> run(std::function<void()> task) = 0;
  /// True if the calling thread is this worker.
  virtual bool is_current() const = 0;
};

/// The worker of this device. The first call starts its thread. Throws DeviceError if the device does not
/// exist.
DeviceWorker& device_worker(Device device);

/// Runs task(i) on the worker of devices[i] for all i concurrently, and returns when all tasks have ended. If
/// tasks throw, rethrows the earliest exception: an exception derived from std::runtime_error keeps its type,
/// and the device is appended to its text. Concurrent calls submit to all workers in the same order, so the
/// tasks of one call may wait for each other without a deadlock.
void on_workers(std::span<const Device> devices, const std::function<void(int)>& task);

}  // namespace tapestry
