#pragma once
// Describes the rank that failed first.
#include <cstdint>
#include <deque>
#include <string>

namespace tapestry::distributed::launch {

struct Failure {
  int rank = 0;
  int pid = 0;
  int exit_code = 0;    ///< valid if neither `signal` nor `start_error` is set
  int signal = 0;       ///< the signal that ended the rank, or 0
  int start_error = 0;  ///< errno if the rank could not be started, or 0
  /// The number of out-of-memory kills in this control group while the rank ran; -1 if the kernel does not
  /// report it.
  std::int64_t oom_kills = -1;
  std::deque<std::string> last_lines;

  /// Returns the status that a shell would report: the exit code, 128 + signal, or 126 or 127 if the program
  /// cannot be started.
  int status() const;
};

/// Returns text such as "SIGSEGV (Segmentation fault)".
std::string signal_name(int signal);

/// Returns one line such as "rank 1 (pid 4242) failed first: killed by SIGKILL ...", with a probable cause.
std::string describe(const Failure& failure);

}  // namespace tapestry::distributed::launch
