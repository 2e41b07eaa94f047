#pragma once
#include <string>

struct CommandResult {
  int status = -1;     // the exit status; -1 if a signal ended it
  std::string output;  // stdout and stderr
};
/// Runs `tapestry-ptx <arguments>` in the folder of this folder's programs. It is killed after 60 s.
CommandResult tapestry_ptx(const std::string& arguments);
/// Runs a shell command there.
CommandResult shell(const std::string& command);
