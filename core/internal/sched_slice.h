#pragma once
// Short scheduler slices for threads that compute little but on which other threads wait.

namespace tapestry {

/// Sets the scheduler slice (sched_runtime) of the calling thread to 0.1 ms until the guard is destroyed.
/// Threads that it starts inherit the slice. With a short slice, the thread gets a core as soon as it wakes,
/// even if all cores are busy: Linux's EEVDF scheduler lets a running thread finish its slice of some
/// milliseconds, unless a thread with a shorter slice wakes. Does nothing before Linux 6.12, on other
/// systems, and for scheduling policies other than SCHED_OTHER and SCHED_BATCH.
class SchedSliceGuard {
 public:
  SchedSliceGuard() noexcept;
  ~SchedSliceGuard();
  SchedSliceGuard(const SchedSliceGuard&) = delete;
  SchedSliceGuard& operator=(const SchedSliceGuard&) = delete;

 private:
  unsigned long saved_ns_ = 0;  // 0 if the slice was not changed
};

}  // namespace tapestry
