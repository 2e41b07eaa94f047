#pragma once
// Modes run in processes of their own, so that each begins with empty caches and threads of its own.
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace apps::compare {

struct Child {
  std::vector<std::string> arguments;            ///< for this program
  std::map<std::string, std::string> variables;  ///< of its environment, beside this one's
  std::chrono::milliseconds limit{0};
};

/// A signal has asked this program to end.
struct Interrupted {
  int signal = 0;
};

/// Starts this program again, one child at a time. Make it before any thread is started: it blocks the
/// signals that end programs, and hands them on to the child.
class Children {
 public:
  Children();
  ~Children();
  Children(const Children&) = delete;
  Children& operator=(const Children&) = delete;

  /// Why it failed, with its last lines; empty if it ended well. What still runs at its limit is ended, with
  /// all that it started. Throws Interrupted.
  std::string run(const Child& child);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Runs this program with these arguments as one process a device, joined by the variables of tapestry-run.
/// Returns the exit status.
int launch_ranks(const std::vector<std::string>& arguments, int count);

}  // namespace apps::compare
