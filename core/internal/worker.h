#pragma once
// One persistent compute thread a logical device: all compute of a device that is not the caller's own
// happens there (engine, DataParallel and pipeline share it). Not in tapestry.h.
#include <functional>
#include <future>
#include <span>

#include "tapestry/core/device.h"

namespace tapestry {

/// Runs tasks in the order of submission.
class DeviceWorker {
 public:
  virtual ~DeviceWorker() = default;

  /// Queues `task`, to run with a copy of the caller's Context and with the device's share of the compute
  /// threads. The future's get() rethrows what the task threw; its wait_for() waits with a bound. Dropping it
  /// waits for nothing. Called from the worker itself it runs the task at once, since waiting for it could
  /// never end. Throws Error when the program is ending.
  virtual std::future<void> run(std::function<void()> task) = 0;
  /// True if the calling thread is this worker.
  virtual bool is_current() const = 0;
};

/// The worker of this device; its thread starts with the first call. Throws DeviceError when the device does
/// not exist.
DeviceWorker& device_worker(Device device);

/// Runs task(i) on the worker of devices[i], all at once, and returns when all have ended. Rethrows the first
/// exception, by time, as what it was, with the device in its text. Calls from several threads reach all
/// workers in one order, so that the tasks of a call may wait for each other.
void on_workers(std::span<const Device> devices, const std::function<void(int)>& task);

}  // namespace tapestry
