#pragma once
// What is said of the rank that failed first. Not in tapestry.h: for the launcher and its tests.
#include <cstdint>
#include <deque>
#include <string>

namespace tapestry::distributed::launch {

struct Failure {
  int rank = 0;
  int pid = 0;
  int exit_code = 0;    ///< if neither of the next two is set
  int signal = 0;       ///< that ended it
  int start_error = 0;  ///< errno, if it could not be started
  /// Out-of-memory kills that the kernel counted in this control group meanwhile; -1: it does not say.
  std::int64_t oom_kills = -1;
  std::deque<std::string> last_lines;

  /// As a shell counts: the exit code, 128 + signal, 126 or 127 for what cannot be started.
  int status() const;
};

/// "SIGSEGV (Segmentation fault)"
std::string signal_name(int signal);

/// "rank 1 (pid 4242) failed first: killed by SIGKILL ...", one line with what it may mean.
std::string describe(const Failure& failure);

}  // namespace tapestry::distributed::launch
