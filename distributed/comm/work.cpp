#include "tapestry/distributed/comm/internal/work.h"

#include <algorithm>
#include <exception>
#include <thread>
#include <utility>

#include "tapestry/core/error.h"
#include "tapestry/distributed/comm/internal/deadline.h"

namespace tapestry::distributed {
namespace {

// Extra time for what a collective's timeout does not cover: the diagnosis of a failure, and threads that
// wait for a core.
constexpr std::chrono::seconds kStuckGrace{15};

}  // namespace

void Work::State::start() {
  const std::lock_guard lock(mutex);
  started = Clock::now();
}

void Work::State::finish(std::shared_ptr<const Failure> why, std::exception_ptr thrown, bool last) {
  const std::lock_guard lock(mutex);
  finished = Clock::now();
  if (why) failure = std::move(why);
  if (thrown) error = std::move(thrown);
  done = true;
  settled = last;
  changed.notify_all();
}

void Work::State::wait_until(Deadline deadline, Milliseconds asked) const {
  // Waits for the other messages of a batch too if one has failed: their tensors are in use.
  std::exception_ptr first;
  for (const auto& part : parts) {
    try {
      part->wait_until(deadline, asked);
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
  if (!parts.empty()) return;
  std::unique_lock lock(mutex);
  check<DistributedError>(done || std::this_thread::get_id() != progress->thread, "[wait] ", what,
                          " runs on the thread that waits for it; do not call wait() in a task of enqueue()");
  while (!done) {
    // Each earlier call in the queue ends within its timeout. So the queue is stuck if no call began or ended
    // for longer than that.
    const Clock::time_point last{Clock::duration(progress->last.load(std::memory_order_relaxed))};
    const Deadline stuck = last + timeout + kStuckGrace;
    const Deadline until = std::min(deadline, stuck);
    if (changed.wait_until(lock, until, [this] { return done; })) break;
    check<TimeoutError>(Clock::now() < deadline, "[wait] ", what, " is not done after ", asked.count(),
                        " ms; wait longer, or check what the other ranks do");
    check<TimeoutError>(
        Clock::duration(progress->last.load()) != last.time_since_epoch(), "[wait] ", what,
        " is not done, and no earlier call finished within its timeout; a task of enqueue() or the transport "
        "is stuck");
  }
  if (failure) failure->raise();
  if (error) std::rethrow_exception(error);
  if (device) device->join();
}

bool Work::State::wait_for(Milliseconds time, bool on_host) const {
  {
    std::unique_lock lock(mutex);
    if (!changed.wait_for(lock, time, [&] { return on_host ? settled : done; })) return false;
    if (failure || error || !device || !on_host) return true;
  }
  return device->wait_for(time);
}

bool Work::State::is_stuck() const {
  const Clock::time_point last{Clock::duration(progress->last.load(std::memory_order_relaxed))};
  return Clock::now() >= last + timeout + kStuckGrace;
}

void Work::wait() const {
  if (!state_) return;
  state_->awaited = true;
  state_->wait_until(Deadline::max(), {});
}

void Work::wait(Milliseconds timeout) const {
  if (!state_) return;
  state_->awaited = true;
  state_->wait_until(deadline_after(timeout), timeout);
}

ScopedWork::~ScopedWork() noexcept(false) {
  if (state_ && !state_->awaited && std::uncaught_exceptions() <= exceptions_) wait();
}

CallOptions after(std::vector<Work> works, std::string_view name) {
  CallOptions options(name);
  for (const Work& work : works)
    if (const auto& state = work.state(); state && state->parts.empty()) options.after.push_back(state);
    else if (state) options.after.insert(options.after.end(), state->parts.begin(), state->parts.end());
  return options;
}
CallOptions after(const Work& work, std::string_view name) { return after(std::vector{work}, name); }

bool Work::done() const {
  if (!state_) return true;
  const auto& parts = state_->parts;
  if (!parts.empty())
    return std::all_of(parts.begin(), parts.end(), [](const auto& part) { return Work(part).done(); });
  const std::lock_guard lock(state_->mutex);
  return state_->done && (state_->failure || !state_->device || state_->device->done());
}

Clock::time_point Work::started() const {
  if (!state_) return {};
  const std::lock_guard lock(state_->mutex);
  Clock::time_point first = state_->started;
  for (const auto& part : state_->parts) {
    const Clock::time_point start = Work(part).started();
    if (first == Clock::time_point{} || (start != Clock::time_point{} && start < first)) first = start;
  }
  return first;
}

Clock::time_point Work::finished() const {
  if (!state_) return {};
  const std::lock_guard lock(state_->mutex);
  Clock::time_point last = state_->finished;
  for (const auto& part : state_->parts) {
    const Clock::time_point end = Work(part).finished();
    if (end == Clock::time_point{}) return end;
    last = std::max(last, end);
  }
  return last;
}

}  // namespace tapestry::distributed
