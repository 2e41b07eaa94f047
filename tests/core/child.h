#pragma once
// Runs one hidden test case of this program in a process of its own: for what is read once (environment
// variables) and for what happens when a process ends.
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <string>

struct ChildResult {
  int status = -1;     // of exit; -1 if a signal ended it
  std::string output;  // stdout and stderr
};

/// `environment` as a shell writes it: "NAME=value OTHER=value". Ends the child after a minute.
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
