#include "tapestry/tools/ptx/tests/laboratory/command.h"

#include <sys/wait.h>

#include <array>
#include <cstdio>

CommandResult shell(const std::string& command) {
  CommandResult result;
  FILE* const pipe = popen(("cd '" TAPESTRY_LABORATORY "' && exec 2>&1 && " + command).c_str(), "r");
  if (!pipe) return result;
  std::array<char, 4096> text;
  while (const std::size_t got = fread(text.data(), 1, text.size(), pipe))
    result.output.append(text.data(), got);
  const int status = pclose(pipe);
  if (WIFEXITED(status)) result.status = WEXITSTATUS(status);
  return result;
}
CommandResult tapestry_ptx(const std::string& arguments) {
  return shell("timeout 60 '" TAPESTRY_PTX "' " + arguments);
}
