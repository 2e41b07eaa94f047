#pragma once
// Compares what code of the documentation prints with what its page says.
#include <functional>
#include <string>

namespace tests {

// Calls `code`. It must succeed, and its output (stdout and stderr together) must match `quoted`, which
// stands at `place`.
void prints(const std::string& place, const std::string& quoted, const std::function<void()>& code);

// Runs a program of the build folder with its arguments, or commands on several lines. The exit status of
// each must be 0.
void run_program(const std::string& command);

}  // namespace tests
