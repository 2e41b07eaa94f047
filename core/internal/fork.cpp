#include "tapestry/core/internal/fork.h"

#include <pthread.h>

#include <atomic>
#include <vector>

namespace tapestry {
namespace {

constinit std::atomic<std::uint32_t> generation{0};

struct Held {
  std::mutex mutex;  // guards the list
  std::vector<std::mutex*> list;
};
// Never destroyed, because the process may fork while it ends.
Held& held() {
  static Held& all = *new Held;
  return all;
}

void before_fork() {
  held().mutex.lock();
  for (std::mutex* mutex : held().list) mutex->lock();
}
// The child may unlock the mutexes, because the thread that locked them is the one that it has.
void after_fork() {
  for (std::mutex* mutex : held().list) mutex->unlock();
  held().mutex.unlock();
}
void in_child() {
  generation.fetch_add(1, std::memory_order_relaxed);
  after_fork();
}

[[maybe_unused]] const int registered = pthread_atfork(before_fork, after_fork, in_child);

}  // namespace

std::uint32_t fork_generation() noexcept { return generation.load(std::memory_order_relaxed); }

std::mutex& lock_during_fork(std::mutex& mutex) {
  const std::lock_guard lock(held().mutex);
  held().list.push_back(&mutex);
  return mutex;
}

}  // namespace tapestry
