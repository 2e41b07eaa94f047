#pragma once
// What the copies of a Work share.
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

  const std::string what;  // for messages
  const Milliseconds timeout;
  const std::shared_ptr<const Fifo::Progress> progress;

  std::shared_ptr<DeviceWork> device;  // null: no GPU has a part in it; set before anybody waits

  mutable std::mutex mutex;
  mutable std::condition_variable changed;
  bool done = false;
  Clock::time_point started{}, finished{};
  std::shared_ptr<const Failure> failure;
  std::exception_ptr error;  // what a task of the caller's threw

  void start();
  /// What a GPU has a part in is finished twice: when it was given its part, and when that is done. A failure
  /// stays.
  void finish(std::shared_ptr<const Failure> why, std::exception_ptr thrown = nullptr);
  void wait_until(Deadline deadline, Milliseconds asked) const;
};

}  // namespace tapestry::distributed
