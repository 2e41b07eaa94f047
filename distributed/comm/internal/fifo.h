#pragma once
// One thread that runs tasks in the order of posting.
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "tapestry/distributed/comm/store.h"

namespace tapestry::distributed {

/// Tasks must not throw. Its thread has one compute thread: what runs beside the compute of a device opens no
/// parallel region.
class Fifo {
 public:
  /// What those who wait for a task may know of the thread; outlives it.
  struct Progress {
    std::atomic<Clock::rep> last{0};  ///< when a task last began or ended
    std::thread::id thread;
  };

  /// `name` is the thread's, of which Linux shows 15 characters.
  explicit Fifo(std::string name);
  /// stop() at once: see there.
  ~Fifo();
  Fifo(const Fifo&) = delete;
  Fifo& operator=(const Fifo&) = delete;

  void post(std::function<void()> task);
  bool is_current() const { return std::this_thread::get_id() == progress_->thread; }
  const std::shared_ptr<const Progress>& progress() const { return progress_; }
  /// Waits until all tasks have run and the thread has ended. At the deadline, or when called by the thread
  /// itself, it lets go of the thread, which ends by itself after the last task. Nothing may be posted
  /// afterwards.
  void stop(Deadline deadline);

 private:
  struct State;
  std::shared_ptr<State> state_;
  std::shared_ptr<const Progress> progress_;
  std::thread thread_;
};

}  // namespace tapestry::distributed
