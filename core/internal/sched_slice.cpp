#include "tapestry/core/internal/sched_slice.h"

#ifdef __linux__
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <cstdint>

namespace tapestry {

#ifdef __linux__

namespace {

// The struct sched_attr of sched_setattr(2). Only recent C libraries declare it.
struct SchedAttr {
  std::uint32_t size, policy;
  std::uint64_t flags;
  std::int32_t nice;
  std::uint32_t priority;
  std::uint64_t runtime_ns, deadline_ns, period_ns;
};
constexpr std::uint64_t kShortSliceNs = 100'000;  // the minimum that the kernel accepts

// Returns the old slice, or 0 if the slice was not changed.
std::uint64_t set_slice(std::uint64_t ns) {
  SchedAttr a{};
  if (syscall(SYS_sched_getattr, 0, &a, sizeof a, 0) != 0) return 0;
  if (a.policy != SCHED_OTHER && a.policy != SCHED_BATCH) return 0;
  const std::uint64_t before = a.runtime_ns;  // Linux before 6.12 reports 0
  if (before == 0) return 0;
  a.runtime_ns = ns;
  return syscall(SYS_sched_setattr, 0, &a, 0) == 0 ? before : 0;
}

}  // namespace

SchedSliceGuard::SchedSliceGuard() noexcept : saved_ns_(set_slice(kShortSliceNs)) {}
SchedSliceGuard::~SchedSliceGuard() {
  if (saved_ns_ != 0) set_slice(saved_ns_);
}

#else

SchedSliceGuard::SchedSliceGuard() noexcept = default;
SchedSliceGuard::~SchedSliceGuard() = default;

#endif

}  // namespace tapestry
