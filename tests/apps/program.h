#pragma once
// Runs an app as a child process and returns its output and exit status.
#include <sys/resource.h>
#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace tests {

struct Launch {
  std::vector<std::string> arguments;
  int pending_signal = 0;  ///< this signal is pending from the start, so that training stops after one step
  int ignored_signal = 0;  ///< this signal is ignored from the start, as SIGHUP under nohup; 0 means none
  std::function<bool()> kill_when = {};     ///< polled; the child gets SIGKILL when it returns true
  std::function<void(pid_t)> on_poll = {};  ///< called about every millisecond with the child's process id
  rlim_t largest_file = RLIM_INFINITY;      ///< limit of the file size, to simulate a full disk
  int terminal_columns = 0;                 ///< if not 0, stdout is a terminal of this width
  std::chrono::seconds limit{60};           ///< the child is killed after this time
  std::string program = "classifier";       ///< an app or tapestry-run
  std::string input = {};                   ///< a file for standard input; /dev/null if empty
};

struct Ended {
  int status = -1;  ///< the exit status, or -1 if a signal ended the child
  int signal = 0;   ///< the signal that ended the child, or 0
  std::string out, err;
};

/// Runs the child to its end. Throws if the child exceeds its time limit or leaves processes behind.
Ended run(const Launch& launch);
inline Ended classifier(const Launch& launch) { return run(launch); }
/// The process id of a rank that `launcher` started, or -1 if there is none.
pid_t pid_of_rank(pid_t launcher, int rank);
Ended classifier(std::vector<std::string> arguments);
/// True if `err` is exactly the warning about a softmax before cross_entropy, which the demo model causes.
inline bool is_softmax_warning(const std::string& err) {
  return err.starts_with("[cross_entropy] warning: the input is a result of softmax()") &&
         err.find('\n') == err.size() - 1;
}
/// Runs an app on several ranks with tapestry-run.
Launch on_ranks(int ranks, const std::string& app, const std::vector<std::string>& arguments);
Launch two_ranks(const std::string& app, const std::vector<std::string>& arguments);
Ended on_two_ranks(const std::string& app, const std::vector<std::string>& arguments);

}  // namespace tests
