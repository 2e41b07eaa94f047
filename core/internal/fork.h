#pragma once
// What fork() means for the library. The child process has only the thread that called fork(). So the
// threads of OpenMP, device workers, communication queues and prefetchers do not exist there, and waiting for
// one of them would never end.
#include <cstdint>
#include <mutex>

namespace tapestry {

/// How many fork() calls lie between the first process and this one. Costs a relaxed load.
std::uint32_t fork_generation() noexcept;

/// Remembers the process that constructed it. An object that owns a thread has one, and checks it before it
/// waits for the thread.
class ForkMark {
 public:
  /// True in a child process that fork() made after the construction.
  bool is_in_child() const noexcept { return generation_ != fork_generation(); }

 private:
  std::uint32_t generation_ = fork_generation();
};

/// Makes fork() wait until `mutex` is free, so that it is not locked for ever in the child by a thread that
/// does not exist there. The mutex must live until the process ends, and a thread that holds it must lock no
/// other mutex of this kind. Returns the mutex.
std::mutex& lock_during_fork(std::mutex& mutex);

}  // namespace tapestry
