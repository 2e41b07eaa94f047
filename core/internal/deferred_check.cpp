#include "tapestry/core/internal/deferred_check.h"

#include <atomic>
#include <mutex>
#include <utility>

#include "tapestry/core/cuda/internal/devices.h"
#include "tapestry/core/error.h"
#include "tapestry/core/internal/capture_state.h"

namespace tapestry::detail {
namespace {

// Captured calls have the upper half of the numbers, so that a number comes again only after 2^22 other
// calls: a graph keeps its numbers as long as it exists.
constexpr std::int32_t kCalls = static_cast<std::int32_t>(kNothingReported / kPositionsOfCall / 2);

struct Pending {
  Device device;
  std::uint64_t stream, number;
  DeferredCheck check;                                       // of one call,
  std::shared_ptr<const std::vector<DeferredCheck>> replay;  // or those of a replay

  const DeferredCheck* of(std::int32_t call) const {
    if (!replay) return check.call == call ? &check : nullptr;
    for (const DeferredCheck& c : *replay)
      if (c.call == call) return &c;
    return nullptr;
  }
};

std::mutex mutex;
std::vector<Pending>& pending() {
  static auto& all = *new std::vector<Pending>;  // never destroyed: devices may be used after main
  return all;
}
std::atomic<std::size_t> count{0};  // the size of pending(): a wait without pending checks needs no lock
std::atomic<std::uint64_t> made{0};
std::atomic<std::uint32_t> calls{0}, captured_calls{0};

void defer(const Stream& stream, DeferredCheck check,
           std::shared_ptr<const std::vector<DeferredCheck>> replay) {
  const std::lock_guard lock(mutex);
  pending().push_back({stream.device(), stream.id(), made++, std::move(check), std::move(replay)});
  count = pending().size();
}

}  // namespace

CallCell next_call_cell(Device device) {
  const bool captured = current_capture() != nullptr;
  const std::uint32_t number = (captured ? captured_calls : calls).fetch_add(1, std::memory_order_relaxed);
  return {cuda::devices().at(device).report_cell(),
          static_cast<std::int32_t>(number % kCalls) + (captured ? kCalls : 0)};
}

void defer_check(const Stream& stream, DeferredCheck check) {
  if (CaptureState* const capture = current_capture()) return capture->checks->push_back(std::move(check));
  defer(stream, std::move(check), nullptr);
}

void defer_checks(const Stream& stream, std::shared_ptr<const std::vector<DeferredCheck>> checks) {
  if (!checks->empty()) defer(stream, {}, std::move(checks));
}

std::uint64_t count_deferred_checks() { return made; }

void run_deferred_checks(Device device, const Stream* stream, std::uint64_t known) {
  if (count == 0) return;
  const std::atomic_ref<std::int64_t> cell(*cuda::devices().at(device).report_cell());
  std::int64_t reported = cell.load();
  if (reported != kNothingReported) reported = cell.exchange(kNothingReported);
  std::vector<Pending> due;  // destroyed after the lock is released
  DeferredCheck failed{};
  {
    const std::lock_guard lock(mutex);
    std::vector<Pending> others;
    for (Pending& p : pending()) {
      // The call that reported may have another stream, for which the host has not waited yet.
      if (reported != kNothingReported && p.device == device && !failed.fail)
        if (const DeferredCheck* const check = p.of(static_cast<std::int32_t>(reported / kPositionsOfCall)))
          failed = *check;
      const bool is_due = p.number < known && p.device == device && (!stream || p.stream == stream->id());
      (is_due ? due : others).push_back(std::move(p));
    }
    pending() = std::move(others);
    count = pending().size();
  }
  if (reported == kNothingReported) return;
  if (failed.fail) failed.fail(reported % kPositionsOfCall);
  fail<IndexError>("[cuda] an index at position ", reported % kPositionsOfCall,
                   " of an earlier operation was out of range on ", device, "; correct it");
}

void forget_deferred_checks() {
  std::vector<Pending> gone;  // destroyed after the lock is released
  const std::lock_guard lock(mutex);
  gone.swap(pending());
  count = 0;
}

}  // namespace tapestry::detail
