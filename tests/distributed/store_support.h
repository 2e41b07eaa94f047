#pragma once
// Helpers for tests of stores: measured waits, and child processes.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <functional>
#include <string>

#include "tapestry/distributed/comm/store.h"

namespace tests {

using tapestry::distributed::Clock;
using tapestry::distributed::Milliseconds;

constexpr Milliseconds kSoon{20'000};  // a bound for waits that normally end much earlier

inline Milliseconds since(Clock::time_point begin) {
  return std::chrono::duration_cast<Milliseconds>(Clock::now() - begin);
}

/// The text of the E that `f` throws, or "" if it does not throw.
template <class E, class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const E& error) {
    return error.what();
  }
  return "";
}

/// A forked process that runs `body` and exits. If `body` throws, the process prints the text and exits
/// with 1.
class Process {
 public:
  explicit Process(const std::function<void()>& body) : id_(fork()) {
    if (id_ != 0) return;
    alarm(60);
    try {
      body();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "process %d: %s\n", getpid(), error.what());
      _exit(1);
    }
    _exit(0);
  }
  ~Process() {
    if (id_ > 0) kill(id_, SIGKILL), join();
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t id() const { return id_; }
  /// The exit code, or the negated number of the signal that ended the process.
  int join() {
    int status = 0;
    if (waitpid(id_, &status, 0) != id_) return -999;
    id_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  pid_t id_;
};

}  // namespace tests
