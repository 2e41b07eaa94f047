#include "tapestry/core/internal/worker.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#ifdef __linux__
#include <pthread.h>
#endif

#include "tapestry/core/context.h"
#include "tapestry/core/error.h"
#include "tapestry/core/internal/limits.h"
#include "tapestry/core/threads.h"

namespace tapestry {
namespace {

// How long the end of the program waits for a running task.
constexpr std::chrono::seconds kStopTimeout{2};

// How long a worker spins for the next task before it sleeps. The tasks of a training step follow each other
// closely, and a sleeping thread must first be scheduled on a core. With two cores, two workers and a caller,
// Linux often put both workers on the same core: without spinning, 13 to 16% of 4 ms tasks began 3 ms late;
// with it, 1% did.
constexpr std::chrono::milliseconds kSpinTime{1};

// The compute threads of one device: an equal part of all threads for a CPU device. A GPU's worker only
// launches kernels, so it needs one.
int threads_for(Device device) {
  return device.is_cpu() ? std::max(1, get_num_threads() / device_count(DeviceType::cpu)) : 1;
}

struct Job {
  Context context;
  std::function<void()> task;
  std::promise<void> done;
};

class Worker final : public DeviceWorker {
 public:
  explicit Worker(Device device)
      : device_(device), thread_(detail::start_thread("compute", [this] { loop(); })) {}

  std::future<void> run(std::function<void()> task) override {
    Job job{current_context(), std::move(task), {}};
    std::future<void> done = job.done.get_future();
    if (is_current()) {
      execute(job);
      return done;
    }
    {
      const std::lock_guard lock(mutex_);
      check<Error>(!stopping_, "[device_worker] a task for ", device_,
                   " while the program is ending; run it before main returns");
      queue_.push_back(std::move(job));
      wake_.store(true, std::memory_order_release);
    }
    changed_.notify_all();
    return done;
  }

  bool is_current() const override { return std::this_thread::get_id() == thread_.get_id(); }

  // Drops the queued tasks, and waits at most kStopTimeout for the running task. A thread that is stuck is
  // detached.
  void stop() {
    std::deque<Job> dropped;
    std::unique_lock lock(mutex_);
    stopping_ = true;
    wake_.store(true, std::memory_order_release);
    dropped.swap(queue_);
    changed_.notify_all();
    const bool ended = !is_current() && changed_.wait_for(lock, kStopTimeout, [this] { return ended_; });
    lock.unlock();
    if (ended) thread_.join();
    else thread_.detach();
  }

 private:
  void execute(Job& job) {
    std::exception_ptr error;
    try {
      const ContextGuard guard(job.context);
      const ThreadShare share(threads_for(device_));
      job.task();
    } catch (...) {
      error = std::current_exception();
    }
    job.task = nullptr;  // free the task's captures before the waiter continues
    if (error) job.done.set_exception(error);
    else job.done.set_value();
  }

  void spin() const {
    const auto until = std::chrono::steady_clock::now() + kSpinTime;
    while (!wake_.load(std::memory_order_acquire) && std::chrono::steady_clock::now() < until)
      std::this_thread::yield();  // other threads may need the core
  }

  void loop() {
#ifdef __linux__
    pthread_setname_np(pthread_self(),
                       ("compute " + device_.str()).c_str());  // Linux allows at most 15 characters
#endif
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      if (stopping_) break;
      Job job = std::move(queue_.front());
      queue_.pop_front();
      wake_.store(!queue_.empty(), std::memory_order_relaxed);
      lock.unlock();
      execute(job);
      spin();
      lock.lock();
    }
    ended_ = true;
    changed_.notify_all();
  }

  const Device device_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> queue_;
  bool stopping_ = false, ended_ = false;
  std::atomic<bool> wake_{false};  // set to end spin(): a task was queued, or the worker must stop
  std::thread thread_;             // last member, because the thread uses the members above
};

// Never destroyed, because a detached thread may still use its worker while the program ends.
struct Workers {
  std::mutex mutex;
  Worker* of[kNumDeviceTypes][kMaxDevices] = {};
  bool ending = false;
};
Workers& workers() {
  static Workers& all = *new Workers;
  return all;
}

void stop_workers() {
  Workers& all = workers();
  {
    const std::lock_guard lock(all.mutex);
    all.ending = true;
  }
  for (auto& type : all.of)
    for (Worker* worker : type)
      if (worker) worker->stop();
}

}  // namespace

DeviceWorker& device_worker(Device device) {
  check_device("device_worker", device);
  Workers& all = workers();
  const std::lock_guard lock(all.mutex);
  Worker*& worker = all.of[static_cast<int>(device.type)][device.index];
  if (!worker) {
    check<Error>(!all.ending, "[device_worker] a worker for ", device,
                 " while the program is ending; ask before main returns");
    static const bool registered = std::atexit(stop_workers) == 0;
    static_cast<void>(registered);
    worker = new Worker(device);
  }
  return *worker;
}

void on_workers(std::span<const Device> devices, const std::function<void(int)>& task) {
  std::mutex mutex;
  std::exception_ptr first;
  const auto keep = [&] {
    const std::lock_guard lock(mutex);
    if (!first) first = std::current_exception();
  };
  const auto run = [&](int i) {
    const Device device = devices[static_cast<std::size_t>(i)];
    try {
      task(i);
    } catch (std::runtime_error& e) {
      // Only the text of the exception object changes, so the type is kept.
      e = std::runtime_error(concat({e.what(), " (on ", device, ")"}));
      keep();
    } catch (const std::exception& e) {
      try {
        std::throw_with_nested(Error(concat({e.what(), " (on ", device, ")"})));
      } catch (...) {
        keep();
      }
    } catch (...) {
      keep();
    }
  };
  std::vector<DeviceWorker*> workers;  // device_worker() may throw, so call it before submitting any task
  for (const Device device : devices) workers.push_back(&device_worker(device));
  std::vector<std::future<void>> running;
  const auto submit = [&](bool to_this_thread) {
    for (std::size_t i = 0; i < workers.size(); ++i) {
      if (workers[i]->is_current() != to_this_thread) continue;
      try {
        running.push_back(workers[i]->run([&run, i] { run(static_cast<int>(i)); }));
      } catch (...) {  // the program is ending; running tasks use this stack frame, so still wait for them
        keep();
      }
    }
  };
  {
    static std::mutex& submission_order = *new std::mutex;  // never destroyed, like the workers
    const std::lock_guard lock(submission_order);
    submit(false);
  }
  submit(true);
  for (std::future<void>& done : running) {
    try {
      done.get();
    } catch (...) {
      keep();
    }
  }
  if (first) std::rethrow_exception(first);
}

}  // namespace tapestry
