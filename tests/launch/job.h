#pragma once
// Runs tapestry-run like a user, bounds every wait, and finds processes that it left behind.
#include <csignal>
#include <set>
#include <string>
#include <vector>

#include "tests/support/files.h"

namespace tests {

/// Returns the path build/.../bin/tapestry-run.
std::string launcher_path();
/// Returns the path of this test program.
std::string own_path();

/// One run of tapestry-run or another program. All of its processes carry a marker in their environment, by
/// which the test finds them in /proc. The destructor kills the remaining ones.
class Job {
 public:
  /// `variables` have the form "NAME=value". $DIR is a temporary folder for scripts.
  explicit Job(std::vector<std::string> arguments, std::vector<std::string> variables = {},
               const std::string& program = launcher_path());
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  /// Returns the exit status, 128 + signal if a signal ended it, or -1 if it still runs after `seconds`.
  int wait(double seconds = 30);
  double seconds() const;  ///< seconds since the start
  void signal(int signal) const { kill(pid_, signal); }
  int pid() const { return pid_; }

  std::string out() const { return read_file(dir_ / "out"); }
  std::string err() const { return read_file(dir_ / "err"); }
  std::string err_last_line() const;
  std::string file(const std::string& name) const { return read_file(dir_ / name); }
  void write(const std::string& name, const std::string& text) const { write_file(dir_ / name, text); }
  std::string path(const std::string& name) const { return dir_ / name; }
  /// Waits at most `seconds` until a script has created this file in $DIR. Returns false if it did not.
  bool made(const std::string& name, double seconds = 20) const;

  /// Returns the processes with the marker, including the launcher and excluding zombies.
  std::set<int> processes() const;
  /// Waits at most `seconds` until no process is left. Returns false if one is.
  bool all_gone(double seconds = 5) const;
  /// Returns the launcher's children, including zombies.
  std::set<int> children() const;

 private:
  TempDir dir_;
  std::string mark_;
  int pid_ = -1;
  int status_ = -1;
  std::chrono::steady_clock::time_point started_;
};

/// Returns the state letter of /proc/<pid>/stat (R, S, T, Z, ...), or 0 if there is no such process.
char state_of(int pid);

/// Returns the name that the kernel has for the process (/proc/<pid>/comm), which has at most 15 characters.
std::string name_of(int pid);

/// Calls `done` until it returns true, for at most `seconds`. Returns false if it never did.
template <class F>
bool eventually(F&& done, double seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!done()) {
    if (std::chrono::steady_clock::now() > end) return false;
    usleep(5000);
  }
  return true;
}

}  // namespace tests
