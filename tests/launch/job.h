#pragma once
// Runs tapestry-run as a user does, with every wait bounded, and finds what it left behind.
#include <csignal>
#include <set>
#include <string>
#include <vector>

#include "tests/support/files.h"

namespace tests {

/// build/.../bin/tapestry-run
std::string launcher_path();
/// This program.
std::string own_path();

/// One run of tapestry-run, or of another program. All its processes carry a mark in their environment, by
/// which they are found in /proc; what is left is killed at the end of the scope.
class Job {
 public:
  /// `variables` as "NAME=value". Scripts find a folder of their own in $DIR.
  explicit Job(std::vector<std::string> arguments, std::vector<std::string> variables = {},
               const std::string& program = launcher_path());
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  /// Its exit status; 128 + signal if one ended it; -1 if it has not ended after `seconds`.
  int wait(double seconds = 30);
  double seconds() const;  ///< since its start
  void signal(int signal) const { kill(pid_, signal); }
  int pid() const { return pid_; }

  std::string out() const { return read_file(dir_ / "out"); }
  std::string err() const { return read_file(dir_ / "err"); }
  std::string err_last_line() const;
  std::string file(const std::string& name) const { return read_file(dir_ / name); }
  void write(const std::string& name, const std::string& text) const { write_file(dir_ / name, text); }
  std::string path(const std::string& name) const { return dir_ / name; }
  /// Whether a script has made this file in $DIR; waits for it, at most `seconds`.
  bool made(const std::string& name, double seconds = 20) const;

  /// Processes with the mark that are no zombies, the launcher included.
  std::set<int> processes() const;
  /// Whether none is left, now or within `seconds`.
  bool all_gone(double seconds = 5) const;
  /// Children of the launcher, zombies too.
  std::set<int> children() const;

 private:
  TempDir dir_;
  std::string mark_;
  int pid_ = -1;
  int status_ = -1;
  std::chrono::steady_clock::time_point started_;
};

/// The letter in /proc/<pid>/stat: R, S, T, Z...; 0 if there is no such process.
char state_of(int pid);

/// As the kernel knows it, at most 15 letters.
std::string name_of(int pid);

/// Calls `done` until it is true, at most `seconds` long; whether it was.
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
