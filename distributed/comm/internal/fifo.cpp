#include "tapestry/distributed/comm/internal/fifo.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#ifdef __linux__
#include <pthread.h>
#endif

#include "tapestry/core/internal/limits.h"
#include "tapestry/core/internal/sched_slice.h"
#include "tapestry/core/threads.h"

namespace tapestry::distributed {
namespace {

thread_local bool in_fifo = false;

}  // namespace

bool Fifo::runs_this_thread() { return in_fifo; }

struct Fifo::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> queue;
  bool stopping = false, ended = false;
  std::shared_ptr<Progress> progress = std::make_shared<Progress>();

  void loop() {
    in_fifo = true;
    const ThreadShare share(1);
    const SchedSliceGuard at_once;  // gets a core at once although the compute threads keep all cores busy
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return stopping || !queue.empty(); });
      if (queue.empty()) break;
      auto task = std::move(queue.front());
      queue.pop_front();
      lock.unlock();
      progress->step();
      task();
      task = nullptr;
      progress->step();
      lock.lock();
    }
    ended = true;
    changed.notify_all();
  }
};

Fifo::Fifo(std::string name) : state_(std::make_shared<State>()), progress_(state_->progress) {
  const std::lock_guard lock(state_->mutex);  // the thread waits for this mutex until its id has been stored
  thread_ = detail::start_thread("process_group", [state = state_, name = std::move(name).substr(0, 15)] {
#ifdef __linux__
    pthread_setname_np(pthread_self(), name.c_str());
#endif
    state->loop();
  });
  state_->progress->thread = thread_.get_id();
  progress_->step();
}

Fifo::~Fifo() { stop(Clock::now()); }

void Fifo::post(std::function<void()> task) {
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->queue.empty())
      progress_->step();  // Work::wait() must not take the idle time for a stuck queue
    state_->queue.push_back(std::move(task));
  }
  state_->changed.notify_all();
}

void Fifo::stop(Deadline deadline) {
  if (!thread_.joinable()) return;
  std::unique_lock lock(state_->mutex);
  state_->stopping = true;
  state_->changed.notify_all();
  const bool ended =
      !is_current() && state_->changed.wait_until(lock, deadline, [this] { return state_->ended; });
  lock.unlock();
  if (ended) thread_.join();
  else thread_.detach();
}

}  // namespace tapestry::distributed
