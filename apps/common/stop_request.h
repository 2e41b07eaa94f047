#pragma once
// Ctrl-C as a question that a training loop asks.
#include <csignal>

namespace apps {

/// While it lives, Ctrl-C (SIGINT) does not end the program but is kept until asked for, so that the loop can
/// finish its step and save. Make it before any thread is started: threads inherit the mask.
///
/// The signal is blocked and polled, never handled: a handler's frame would be written below the stack
/// pointer, and code that oneDNN 2.6 generates for matrix products moves that into the heap while it runs.
class StopRequest {
 public:
  StopRequest() {
    sigemptyset(&interrupt_);
    sigaddset(&interrupt_, SIGINT);
    std::signal(SIGINT, SIG_DFL);  // what is ignored, as in a shell's background jobs, is never kept
    pthread_sigmask(SIG_BLOCK, &interrupt_, &before_);
  }
  ~StopRequest() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;

  /// Whether it was made since the last time.
  bool made() const {
    const timespec now{};
    return sigtimedwait(&interrupt_, nullptr, &now) == SIGINT;
  }

 private:
  sigset_t interrupt_, before_;
};

}  // namespace apps
