#pragma once
// What the PTX machine throws: text that it cannot read, and kernels that do something invalid.
#include <stdexcept>
#include <string>

namespace tapestry::ptx {

/// The PTX text is wrong, or contains something that the machine does not know. The message names the line of
/// the text.
class ParseError : public std::runtime_error {
 public:
  ParseError(int line, const std::string& what)
      : std::runtime_error("[ptx] line " + std::to_string(line) + ": " + what), line_(line) {}
  int line() const { return line_; }

 private:
  int line_;
};

/// A kernel did something invalid. The message names the kernel, the source line, the block and the thread.
class KernelError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The caller of the machine passed something invalid, such as a block of 2000 threads.
class UsageError : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

}  // namespace tapestry::ptx
