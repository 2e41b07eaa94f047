#pragma once
// Lets a program run itself again: as a supervised child process, or as a job of several ranks.
//
//   launch::ChildProcesses children;   // before any thread is started
//   const std::string error = children.run({.arguments = {"--task", "a"}, .limit =
//   std::chrono::seconds(60)});
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tapestry/core/clock.h"

namespace tapestry::distributed::launch {

struct Child {
  std::vector<std::string> arguments;              ///< command-line arguments of the child
  std::map<std::string, std::string> variables{};  ///< environment variables, added to those of this process
  std::chrono::milliseconds limit{0};              ///< the child is killed after this time
};

/// Thrown if a signal such as SIGINT asked this process to end.
struct Interrupted {
  int signal = 0;
};

/// Runs this program as a child process, one child at a time. Construct it before any thread is started: it
/// blocks SIGINT, SIGTERM and SIGHUP, and forwards them to the child. SIGINT and SIGHUP stay ignored if they
/// were ignored.
class ChildProcesses {
 public:
  ChildProcesses();
  ~ChildProcesses();
  ChildProcesses(const ChildProcesses&) = delete;
  ChildProcesses& operator=(const ChildProcesses&) = delete;

  /// Waits for the child. Returns the reason of its failure with its last lines of output, or an empty string
  /// if it succeeded. At the limit the child and all its descendants are killed. The child is not a rank of
  /// the job to which this process may belong. Throws Interrupted.
  std::string run(const Child& child);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Runs this program as a job of `count` ranks, with the environment variables that tapestry-run sets.
/// Returns the exit status.
int launch_ranks(const std::vector<std::string>& arguments, int count);

}  // namespace tapestry::distributed::launch
