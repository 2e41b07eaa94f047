#pragma once
// What tests of stores share: measured waits and processes of one's own.
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

constexpr Milliseconds kSoon{20'000};  // for waits that end long before, unless something is wrong

inline Milliseconds since(Clock::time_point begin) {
  return std::chrono::duration_cast<Milliseconds>(Clock::now() - begin);
}

/// The text of the E that `f` throws; "" if it throws none.
template <class E, class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const E& error) {
    return error.what();
  }
  return "";
}

/// A process of this one's kind that runs `body` and nothing else; exits with 1 if it throws, and says what.
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
  /// The exit code; minus the signal that ended it.
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
