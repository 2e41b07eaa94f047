#pragma once
// Runs a function in a child process that fork() makes.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <exception>
#include <string>
#include <thread>

namespace tests {

/// How a child process ended.
struct Forked {
  bool ended = false;   // false if it was killed at the time limit
  int exit_code = -1;   // -1 unless it exited normally
  std::string message;  // what the function returned, or the text of its exception
};

/// Calls `body`, a function that returns a string, in a child process. The child ends with _exit(0), or with
/// _exit(1) if `body` throws. It is killed if it has not ended after 30 s.
template <class F>
Forked in_fork(const F& body) {
  int ends[2];
  if (pipe(ends) != 0) return {};
  const pid_t pid = fork();
  if (pid == 0) {
    std::string text;
    int code = 0;
    try {
      text = body();
    } catch (const std::exception& e) {
      text = e.what();
      code = 1;
    }
    static_cast<void>(!write(ends[1], text.data(), text.size()));
    _exit(code);
  }
  close(ends[1]);
  Forked result;
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  int status = 0;
  while (pid > 0 && !result.ended && std::chrono::steady_clock::now() < limit) {
    result.ended = waitpid(pid, &status, WNOHANG) == pid;
    if (!result.ended) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  if (pid > 0 && !result.ended) {
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
  }
  char text[4096];
  if (const ssize_t n = read(ends[0], text, sizeof text); n > 0)
    result.message.assign(text, static_cast<std::size_t>(n));
  close(ends[0]);
  if (result.ended && WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  return result;
}

}  // namespace tests
