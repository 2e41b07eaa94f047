#include "tapestry/data/prefetcher.h"

#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "tapestry/core/error.h"
#include "tapestry/core/internal/fork.h"
#include "tapestry/core/internal/limits.h"
#include "tapestry/core/threads.h"

namespace tapestry::data {

struct Prefetcher::Impl {
  struct Slot {
    bool done = false;
    std::shared_ptr<void> value;
    std::exception_ptr error;
  };

  Make make;
  const ForkMark mark;
  const std::int64_t end;
  std::mutex mutex;
  std::condition_variable ready, space;
  std::vector<Slot> slots;           // result k is in slots[k % size]
  std::int64_t claimed, handed_out;  // the next result to compute, and the next result to return
  bool stopping = false;
  std::vector<std::thread> threads;

  Impl(Make m, std::int64_t begin, std::int64_t e, int workers, int ahead)
      : make(std::move(m)),
        end(e),
        slots(static_cast<std::size_t>(workers) * static_cast<std::size_t>(ahead)),
        claimed(begin),
        handed_out(begin) {}

  Slot& slot(std::int64_t k) { return slots[static_cast<std::size_t>(k) % slots.size()]; }

  void work() {
    const ThreadShare one(1);  // OpenMP regions of a worker would slow down those of the compute thread
    std::unique_lock lock(mutex);
    while (true) {
      space.wait(lock, [&] {
        return stopping || claimed == end || claimed < handed_out + static_cast<std::int64_t>(slots.size());
      });
      if (stopping || claimed == end) return;
      const std::int64_t k = claimed++;
      lock.unlock();
      Slot result{.done = true};
      try {
        result.value = make(k);
      } catch (...) {
        result.error = std::current_exception();
      }
      lock.lock();
      slot(k) = std::move(result);
      if (k == handed_out) ready.notify_one();
    }
  }

  void stop() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    space.notify_all();
    for (std::thread& thread : threads) thread.join();
    threads.clear();
  }
};

Prefetcher::Prefetcher(Make make, std::int64_t begin, std::int64_t end, int workers, int ahead) {
  check(workers >= 0, "[DataLoader] num_workers is ", workers, "; it cannot be negative");
  check(ahead >= 1, "[DataLoader] prefetch is ", ahead, "; it must be at least 1");
  impl_ = std::make_unique<Impl>(std::move(make), begin, end, workers, ahead);
  try {
    for (int i = 0; i < workers; ++i)
      impl_->threads.push_back(
          tapestry::detail::start_thread("DataLoader", [impl = impl_.get()] { impl->work(); }));
  } catch (const Error& e) {
    const std::size_t started = impl_->threads.size();
    impl_->stop();
    fail<Error>(e.what(), " (", started, " of ", workers, " workers were started)");
  }
}

Prefetcher::~Prefetcher() {
  // In a child process the workers do not exist, and destroying a condition variable would wait for them.
  if (impl_->mark.is_in_child() && !impl_->threads.empty()) static_cast<void>(impl_.release());
  else impl_->stop();
}

std::shared_ptr<void> Prefetcher::next() {
  Impl& s = *impl_;
  if (s.slots.empty()) return s.handed_out == s.end ? nullptr : s.make(s.handed_out++);
  check<Error>(
      !s.mark.is_in_child(),
      "[DataLoader] the workers of this loop were started before fork(), and do not exist in this child "
      "process; start the loop in the child, or use num_workers = 0");
  std::unique_lock lock(s.mutex);
  if (s.handed_out == s.end) return nullptr;
  Impl::Slot& slot = s.slot(s.handed_out);
  s.ready.wait(lock, [&] { return slot.done; });
  Impl::Slot result = std::move(slot);
  slot = {};
  ++s.handed_out;
  lock.unlock();
  s.space.notify_one();
  if (result.error) std::rethrow_exception(std::move(result.error));
  return std::move(result.value);
}

}  // namespace tapestry::data
