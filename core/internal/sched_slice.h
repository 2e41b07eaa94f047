#pragma once
// Threads that do little, for which others wait. Not in tapestry.h.

namespace tapestry {

/// While it lives, the calling thread, and those that it starts, get a core as soon as they wake, where all
/// cores compute too, for slices of a tenth of a millisecond. Linux (EEVDF) lets a thread that computes go on
/// to the end of its slice, which is milliseconds, unless the one that wakes asked for a shorter one. It can
/// be asked since Linux 6.12; elsewhere, or for another policy than the usual ones, this does nothing.
class SchedSliceGuard {
 public:
  SchedSliceGuard() noexcept;
  ~SchedSliceGuard();
  SchedSliceGuard(const SchedSliceGuard&) = delete;
  SchedSliceGuard& operator=(const SchedSliceGuard&) = delete;

 private:
  unsigned long saved_ns_ = 0;  // 0: nothing was changed
};

}  // namespace tapestry
