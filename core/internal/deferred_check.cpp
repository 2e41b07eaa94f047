#include "tapestry/core/internal/deferred_check.h"

#include <atomic>
#include <exception>
#include <mutex>
#include <utility>
#include <vector>

#include "tapestry/core/internal/capture_state.h"

namespace tapestry {
namespace {

struct Pending {
  Device device;
  std::uint64_t stream, number;
  std::function<void()> check;
};

std::mutex mutex;
std::vector<Pending>& pending() {
  static auto& all = *new std::vector<Pending>;  // never destroyed: devices may be used after main
  return all;
}
std::atomic<std::size_t> count{0};  // the size of pending(): a wait without pending checks needs no lock
std::atomic<std::uint64_t> made{0};

}  // namespace

void defer_check(const Stream& stream, std::function<void()> check) {
  if (!stream.device().is_cuda()) return check();
  if (detail::CaptureState* const capture = detail::current_capture())
    return capture->checks.push_back(std::move(check));
  const std::lock_guard lock(mutex);
  pending().push_back({stream.device(), stream.id(), made++, std::move(check)});
  count = pending().size();
}

std::uint64_t detail::count_deferred_checks() { return made; }

void detail::run_deferred_checks(Device device, const Stream* stream, std::uint64_t known) {
  if (count == 0) return;
  std::vector<Pending> due;
  {
    const std::lock_guard lock(mutex);
    std::vector<Pending> others;
    for (Pending& p : pending()) {
      const bool is_due = p.number < known && p.device == device && (!stream || p.stream == stream->id());
      (is_due ? due : others).push_back(std::move(p));
    }
    pending() = std::move(others);
    count = pending().size();
  }
  std::exception_ptr first;
  for (const Pending& p : due) {
    try {
      p.check();
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

void detail::forget_deferred_checks() {
  std::vector<Pending> gone;  // destroyed after the lock is released
  const std::lock_guard lock(mutex);
  gone.swap(pending());
  count = 0;
}

}  // namespace tapestry
