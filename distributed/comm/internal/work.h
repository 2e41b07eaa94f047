#pragma once
// The state that all copies of a Work share.
#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <string>

#include "tapestry/distributed/comm/internal/device_work.h"
#include "tapestry/distributed/comm/internal/diagnosis.h"
#include "tapestry/distributed/comm/internal/fifo.h"
#include "tapestry/distributed/comm/process_group.h"

namespace tapestry::distributed {

struct Work::State {
  State(std::string what_, Milliseconds timeout_, std::shared_ptr<const Fifo::Progress> progress_)
      : what(std::move(what_)), timeout(timeout_), progress(std::move(progress_)) {}

  const std::string what;  // the call as error messages name it
  const Milliseconds timeout;
  const std::shared_ptr<const Fifo::Progress> progress;

  std::shared_ptr<DeviceWork> device;  // null if no GPU takes part; set before the Work is returned

  std::atomic<bool> awaited{false};  // wait() was called
  mutable std::mutex mutex;
  mutable std::condition_variable changed;
  bool done = false;
  Clock::time_point started{}, finished{};
  std::shared_ptr<const Failure> failure;
  std::exception_ptr error;  // the exception of a task of enqueue()

  void start();
  /// Called twice for work on a GPU: when the work has been enqueued, and when the GPU has finished. An
  /// earlier failure is kept.
  void finish(std::shared_ptr<const Failure> why, std::exception_ptr thrown = nullptr);
  void wait_until(Deadline deadline, Milliseconds asked) const;
};

}  // namespace tapestry::distributed
