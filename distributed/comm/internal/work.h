#pragma once
// The state that all copies of a Work share.
#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tapestry/core/error.h"
#include "tapestry/distributed/comm/internal/device_work.h"
#include "tapestry/distributed/comm/internal/diagnosis.h"
#include "tapestry/distributed/comm/internal/fifo.h"
#include "tapestry/distributed/comm/process_group.h"

namespace tapestry::distributed {

struct Work::State {
  State(std::string what_, Milliseconds timeout_, std::shared_ptr<Fifo::Progress> progress_)
      : what(std::move(what_)), timeout(timeout_), progress(std::move(progress_)) {}
  /// Of a batch of messages, two or more. Only wait_until() and what Work says of it may be called.
  explicit State(std::vector<std::shared_ptr<State>> parts_)
      : what(concat({parts_.size(), " messages"})), timeout(parts_[0]->timeout), parts(std::move(parts_)) {}

  const std::string what;  // the call as error messages name it
  const Milliseconds timeout;
  const std::vector<std::shared_ptr<State>> parts;  // each message of a batch; otherwise empty
  const std::shared_ptr<Fifo::Progress> progress;   // null if the call ran in the caller's thread

  std::shared_ptr<DeviceWork> device;  // null if no GPU takes part; set before the Work is returned

  std::atomic<bool> awaited{false};  // wait() was called
  mutable std::mutex mutex;
  mutable std::condition_variable changed;
  bool done = false, settled = false;  // settled: finish() will not be called again
  Clock::time_point started{}, finished{};
  std::shared_ptr<const Failure> failure;
  std::exception_ptr error;  // the exception of a task of enqueue()

  void start();
  /// Called when the work is done. For a call that a GPU transport runs, called first with `last` = false,
  /// when the work has been enqueued, and again when the GPU has finished. An earlier failure is kept.
  void finish(std::shared_ptr<const Failure> why, std::exception_ptr thrown = nullptr, bool last = true);
  void wait_until(Deadline deadline, Milliseconds asked) const;
  /// Waits until the work is done, at most `time`, and returns whether it is. `on_host`: until the host may
  /// read its tensors, also those on a GPU.
  bool wait_for(Milliseconds time, bool on_host) const;
  /// True if its queue has made no progress for longer than a call may take. Only for work that is not done.
  bool is_stuck() const;
};

}  // namespace tapestry::distributed
