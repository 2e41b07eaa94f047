#pragma once
// Runs one hidden test case of this program in a new process. For tests of environment variables, which are
// read once, and of the end of a process.
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <string>

struct ChildResult {
  int status = -1;     // the exit status; -1 if a signal ended the process
  std::string output;  // stdout and stderr
};

/// `environment` holds arguments of env(1), such as "NAME=value OTHER=value" or "-u NAME". The child is
/// killed after 60 s.
inline ChildResult run_child(const std::string& test_case, const std::string& environment = "") {
  std::array<char, 4096> self{};
  const ssize_t n = readlink("/proc/self/exe", self.data(), self.size() - 1);
  const std::string command = "env " + environment + " timeout 60 '" +
                              std::string(self.data(), n > 0 ? n : 0) + "' '" + test_case + "' 2>&1";
  ChildResult result;
  FILE* const pipe = popen(command.c_str(), "r");
  if (!pipe) return result;
  std::array<char, 4096> text;
  while (const std::size_t got = fread(text.data(), 1, text.size(), pipe))
    result.output.append(text.data(), got);
  const int status = pclose(pipe);
  if (WIFEXITED(status)) result.status = WEXITSTATUS(status);
  return result;
}
