#pragma once
// Signals that ask a program to end, as a flag that a training loop polls.
#include <atomic>
#include <chrono>
#include <csignal>
#include <string>
#include <thread>

namespace apps {

/// While it exists, SIGINT (Ctrl-C), SIGTERM (batch systems and launchers) and SIGHUP (a closed terminal) do
/// not end the process. The first signal is recorded, so that the loop can finish its step and save a
/// checkpoint. A second signal ends the process at once, with that signal's default action. SIGINT and SIGHUP
/// stay ignored if they were ignored when the program started: nohup ignores SIGHUP, and shells start
/// background jobs with SIGINT ignored.
///
/// Signals that follow the first one within kSameRequest are ignored, because senders repeat themselves: if
/// a terminal closes, both the kernel and the shell send SIGHUP, and Slurm signals a launcher, which forwards
/// the signal, and also its ranks.
///
/// The signals are blocked, and a thread reads them from a file descriptor. Signal handlers are not used,
/// because the kernel writes a handler's frame below the stack pointer, and the code that oneDNN 2.6
/// generates for matrix products temporarily points the stack pointer into the heap.
class StopRequest {
 public:
  static constexpr std::chrono::milliseconds kSameRequest{250};

  /// Construct it before any other thread is started, because threads inherit the mask of blocked signals.
  /// Throws Error if the thread or its descriptors cannot be created.
  StopRequest();
  ~StopRequest();
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;

  /// The number of the first signal that arrived, or 0.
  int signal() const { return signal_; }
  /// Forgets the signal if it is this one, so that the next is a first one: with SIGINT, a program that answers
  /// questions ends an answer, and not itself.
  void clear(int number) { signal_.compare_exchange_strong(number, 0); }

 private:
  void watch();
  void on_signal(int number);

  sigset_t signals_, before_;
  int signal_fd_ = -1, end_fd_ = -1;  // end_fd_ becomes readable when the thread must end
  std::atomic<int> signal_{0};
  std::chrono::steady_clock::time_point first_{};  // when signal_ was set
  std::thread thread_;
};

/// Returns "SIGTERM" for SIGTERM.
std::string signal_name(int number);

}  // namespace apps
