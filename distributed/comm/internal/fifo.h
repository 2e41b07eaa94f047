#pragma once
// A thread that runs tasks in the order of posting.
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "tapestry/distributed/comm/store.h"

namespace tapestry::distributed {

/// A queue of tasks and its thread. Tasks must not throw. They run with one compute thread, because a
/// parallel region beside the compute threads of a device would slow these down.
class Fifo {
 public:
  /// State of the thread that waiting threads can read. It outlives the thread.
  struct Progress {
    std::atomic<Clock::rep> last{0};  ///< when a task last began or finished, or waited for another queue
    std::thread::id thread;
    void step() { last.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed); }
  };

  /// `name` is the name of the thread. Linux keeps 15 characters.
  explicit Fifo(std::string name);
  /// Calls stop() with a deadline that has passed.
  ~Fifo();
  Fifo(const Fifo&) = delete;
  Fifo& operator=(const Fifo&) = delete;

  void post(std::function<void()> task);
  bool is_current() const { return std::this_thread::get_id() == progress_->thread; }
  /// True on the thread of any Fifo.
  static bool runs_this_thread();
  const std::shared_ptr<Progress>& progress() const { return progress_; }
  /// Waits until all tasks have run and the thread has ended. If the deadline passes, or if stop() is called
  /// on this thread itself, stop() detaches the thread and returns; the thread then ends after the last task.
  /// Do not post tasks afterwards.
  void stop(Deadline deadline);

 private:
  struct State;
  std::shared_ptr<State> state_;
  std::shared_ptr<Progress> progress_;
  std::thread thread_;
};

}  // namespace tapestry::distributed
