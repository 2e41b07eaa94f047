#pragma once
// Describes the rank that failed first.
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

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
  /// The ranks of this node that had ended with exit code 0 before. If one of them ended too early, it is the
  /// cause, and this rank only lost its connection to it.
  std::vector<int> ended_before;
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
