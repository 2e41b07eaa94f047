#include "tapestry/core/timeline.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>
#include <utility>

#include "tapestry/core/allocator.h"
#include "tapestry/core/error.h"
#include "tapestry/core/internal/capture_state.h"
#include "tapestry/core/internal/kernel_span.h"
#include "tapestry/core/internal/kernel_span_name.h"
#include "tapestry/core/stream.h"

namespace tapestry {
namespace {

using Clock = std::chrono::steady_clock;

double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

// A point in time of a device's work. It is a time of the host's clock for a CPU, and an event in the current
// stream for a GPU.
struct Point {
  Device device;
  Clock::time_point time;
  Event event{true};

  explicit Point(Clock::time_point t) : time(t) {}
  explicit Point(Device d) : device(d) {
    if (d.is_cuda()) event.record(current_stream(d));
    else time = Clock::now();
  }
};

struct Kept {
  Span span;
  Point begin, end;
};

}  // namespace

const char* activity_name(Activity activity) {
  switch (activity) {
    case Activity::forward:
      return "forward";
    case Activity::backward:
      return "backward";
    case Activity::communication:
      return "communication";
    case Activity::optimizer:
      return "optimizer";
    case Activity::kernel:
      return "kernel";
    case Activity::other:
      break;
  }
  return "other";
}

struct Timeline::State {
  explicit State(Detail d) : detail(d) {}
  const Detail detail;
  const Clock::time_point began = Clock::now();
  mutable std::mutex mutex;
  std::vector<Kept> kept;
  // One entry per GPU: an event, and the host's time (in seconds since `began`) at which the GPU reached it.
  // With it, times measured by events are converted to host time.
  std::map<int, std::pair<Point, double>> bases;
  std::map<std::thread::id, int> threads;

  // The number of the calling thread. `mutex` is locked.
  int thread() {
    return threads.emplace(std::this_thread::get_id(), static_cast<int>(threads.size())).first->second;
  }
  std::int64_t allocated(Device device) const {
    return detail == Detail::kernels ? memory_stats(device).allocated : 0;
  }

  void prepare(Device device) {
    if (!device.is_cuda()) return;
    const std::lock_guard lock(mutex);
    if (bases.contains(device.index)) return;
    Point base(device);
    base.event.synchronize();
    bases.emplace(device.index, std::pair(std::move(base), seconds(Clock::now() - began)));
  }
  double when(const Point& p) const {
    if (!p.device.is_cuda()) return seconds(p.time - began);
    const auto& [base, time] = bases.at(p.device.index);
    p.event.synchronize();
    return time + p.event.milliseconds_since(base.event) / 1000;
  }
};

namespace {

// The states of the existing Timelines, oldest first.
std::mutex list_mutex;
std::vector<std::shared_ptr<Timeline::State>>& list() {
  static auto* all =
      new std::vector<std::shared_ptr<Timeline::State>>;  // never destroyed: threads may outlive main
  return *all;
}
std::atomic<int> alive{0};

std::shared_ptr<Timeline::State> newest() {
  const std::lock_guard lock(list_mutex);
  return list().empty() ? nullptr : list().back();
}

}  // namespace

constinit std::atomic<bool> detail::keep_kernel_spans{false};
namespace {
constinit std::atomic<bool> keeps{false};  // the newest Timeline keeps kernels
bool watched = false;                      // a capture watches kernels

// The caller holds list_mutex.
void update_kernel_spans() {
  keeps = !list().empty() && list().back()->detail == Detail::kernels;
  detail::keep_kernel_spans = keeps || watched;
}
}  // namespace

bool Timeline::keeps_kernels() { return keeps.load(std::memory_order_relaxed); }

void detail::watch_kernels(bool on) {
  const std::lock_guard lock(list_mutex);
  watched = on;
  update_kernel_spans();
}

void detail::KernelSpan::begin(Device device, const char* name) {
  check_captured_kernel(device, name);
  if (!Timeline::keeps_kernels()) return;
  span_ = new SpanScope(device, Activity::kernel, name);
}
void detail::KernelSpan::end() { delete static_cast<SpanScope*>(span_); }

Timeline::Timeline(Detail detail) : state_(std::make_shared<State>(detail)) {
  const std::lock_guard lock(list_mutex);
  list().push_back(state_);
  update_kernel_spans();
  alive.fetch_add(1, std::memory_order_relaxed);
}
Timeline::~Timeline() {
  const std::lock_guard lock(list_mutex);
  std::erase(list(), state_);
  update_kernel_spans();
  alive.fetch_sub(1, std::memory_order_relaxed);
}

std::chrono::steady_clock::time_point Timeline::began() const { return state_->began; }

bool Timeline::active() { return alive.load(std::memory_order_relaxed) > 0; }

std::vector<Span> Timeline::spans() const {
  const std::lock_guard lock(state_->mutex);
  std::vector<Span> spans;
  for (const Kept& k : state_->kept) {
    spans.push_back(k.span);
    spans.back().begin = state_->when(k.begin);
    spans.back().end = state_->when(k.end);
  }
  std::sort(spans.begin(), spans.end(),
            [](const Span& a, const Span& b) { return std::tie(a.row, a.begin) < std::tie(b.row, b.begin); });
  return spans;
}

void add_span(const std::string& row, Activity activity, const std::string& name, Clock::time_point begin,
              Clock::time_point end, SpanSubject subject) {
  if (!Timeline::active()) return;
  const std::shared_ptr<Timeline::State> timeline = newest();
  if (!timeline) return;
  Span span;
  span.row = row;
  span.activity = activity;
  span.name = name;
  span.subject = std::move(subject);
  Kept kept{std::move(span), Point(begin), Point(end)};
  const std::lock_guard lock(timeline->mutex);
  kept.span.thread = timeline->thread();
  timeline->kept.push_back(std::move(kept));
}

struct SpanScope::Open {
  std::shared_ptr<Timeline::State> timeline;
  Span span;
  Point begin;
  std::string* outer = nullptr;  // the innermost kernel span around this one
};

namespace {
// The name of the innermost open kernel span of this thread, for name_kernel_span().
thread_local constinit std::string* innermost_kernel = nullptr;
}  // namespace

void detail::name_kernel_span(const char* implementation) {
  if (innermost_kernel && !innermost_kernel->ends_with(']'))
    *innermost_kernel += concat({" [", implementation, "]"});
}

SpanScope::SpanScope(Device device, Activity activity, const char* name, int number, const char* row) {
  if (!Timeline::active()) [[likely]]
    return;
  std::shared_ptr<Timeline::State> timeline = newest();
  if (!timeline) return;
  timeline->prepare(device);
  Span span;
  span.row = row ? row : device.str();
  span.activity = activity;
  span.name = number < 0 ? std::string(name) : std::string(name) + " " + std::to_string(number);
  span.allocated = -timeline->allocated(device);
  open_.reset(new Open{std::move(timeline), std::move(span), Point(device)});
  if (activity == Activity::kernel) open_->outer = std::exchange(innermost_kernel, &open_->span.name);
}

void SpanScope::set_subject(SpanSubject subject) {
  if (open_) open_->span.subject = std::move(subject);
}

SpanScope::~SpanScope() {
  if (!open_) return;
  if (open_->span.activity == Activity::kernel) innermost_kernel = open_->outer;
  try {
    Kept kept{std::move(open_->span), std::move(open_->begin), Point(open_->begin.device)};
    kept.span.allocated += open_->timeline->allocated(kept.begin.device);
    const std::lock_guard lock(open_->timeline->mutex);
    kept.span.thread = open_->timeline->thread();
    open_->timeline->kept.push_back(std::move(kept));
  } catch (...) {  // The device has failed, and its error is thrown elsewhere. The span is lost.
  }
}

}  // namespace tapestry
