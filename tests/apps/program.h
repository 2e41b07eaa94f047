#pragma once
// An app as a child process, as a person runs it: its output, its exit status, how it takes signals.
#include <sys/resource.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace tests {

struct Launch {
  std::vector<std::string> arguments;
  bool interrupt = false;                ///< Ctrl-C is pending from the start: it stops after one step
  std::function<bool()> kill_when = {};  ///< asked all the time; SIGKILL once it is true
  rlim_t largest_file = RLIM_INFINITY;   ///< no file may grow beyond: a disk that is full
  int terminal_columns = 0;              ///< stdout is a terminal this wide; 0: a pipe
  std::chrono::seconds limit{60};        ///< it is killed then
  std::string program = "classifier";    ///< or another app, or tapestry-run
};

struct Ended {
  int status = -1;  ///< of exit; -1 if a signal ended it
  int signal = 0;   ///< that ended it
  std::string out, err;
};

/// Runs it to its end; a run that is killed at its limit throws. Throws too if it leaves a process
/// of its own behind.
Ended run(const Launch& launch);
inline Ended classifier(const Launch& launch) { return run(launch); }
Ended classifier(std::vector<std::string> arguments);
/// True if this is the one line that the demo model's mistake, a softmax too many, is told of with.
inline bool is_softmax_warning(const std::string& err) {
  return err.starts_with("[cross_entropy] warning: the input comes from softmax()") &&
         err.find('\n') == err.size() - 1;
}
/// tapestry-run with an app and its arguments on two ranks.
Launch two_ranks(const std::string& app, const std::vector<std::string>& arguments);
Ended on_two_ranks(const std::string& app, const std::vector<std::string>& arguments);

}  // namespace tests
