#pragma once
// tapestry-ptx run: starts a CUDA program on the machine.
#include <string>
#include <vector>

namespace tapestry::ptx {

extern const char* const kRunHelp;

/// Runs the command. Returns its exit status (see kRunHelp).
int run(const std::vector<std::string>& arguments);

}  // namespace tapestry::ptx
