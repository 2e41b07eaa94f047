#pragma once
// Ctrl-C as a flag that a training loop polls.
#include <csignal>

namespace apps {

/// While it exists, Ctrl-C (SIGINT) does not end the program but stays pending, so that the loop can finish
/// its step and save a checkpoint. Construct it before any thread is started, because threads inherit the
/// signal mask.
///
/// The signal is blocked and polled instead of handled. The kernel writes a handler's frame below the stack
/// pointer, and the code that oneDNN 2.6 generates for matrix products temporarily points the stack pointer
/// into the heap.
class StopRequest {
 public:
  StopRequest() {
    sigemptyset(&interrupt_);
    sigaddset(&interrupt_, SIGINT);
    std::signal(SIGINT,
                SIG_DFL);  // an ignored signal, as in background jobs of a shell, would not become pending
    pthread_sigmask(SIG_BLOCK, &interrupt_, &before_);
  }
  ~StopRequest() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;

  /// True if SIGINT arrived since the last call.
  bool made() const {
    const timespec now{};
    return sigtimedwait(&interrupt_, nullptr, &now) == SIGINT;
  }

 private:
  sigset_t interrupt_, before_;
};

}  // namespace apps
