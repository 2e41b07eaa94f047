#pragma once
// Command lines of the programs. Only command_line.cpp includes CLI11, because compiling CLI11's headers
// takes longer than compiling the rest of a program.
#include <charconv>
#include <functional>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "tapestry/core/error.h"

namespace apps {

/// An invalid command line. The program exits with status 2.
class UsageError : public tapestry::Error {
  using Error::Error;
};

/// A validator of option values.
struct Check {
  /// Returns the error for a value, or an empty string if the value is valid.
  std::function<std::string(const std::string&)> fault;
  std::string shown = {};  ///< the valid values, for --help
};

/// Accepts numbers of type T from `low` to `high`. Rejects nan, and negative numbers if T is unsigned.
template <class T>
Check between(T low, T high) {
  return {[=](const std::string& text) -> std::string {
    T value{};
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    if (error == std::errc() && stop == end && low <= value && value <= high) return "";
    return tapestry::concat({text, " is not a number from ", low, " to ", high});
  }};
}
Check one_of(const std::vector<std::string>& names);

struct OptionRules {
  Check check = {};
  int count = 0;           ///< the number of values in a list; 0 accepts one or more
  bool commas = false;     ///< values of a list may also be separated by commas
  bool last_wins = false;  ///< a repeated option overrides earlier ones instead of being an error
  bool hidden = false;     ///< not shown in --help
  bool bare = false;       ///< the option may stand without a value
  const char* type = nullptr;          ///< what --help shows for the value, such as FILE
  const char* default_text = nullptr;  ///< what --help shows as the default; null: the current value
};

/// Flushes stdout and returns the exit status of a program. If stdout could not be written, for example to a
/// full disk, prints a message and returns 1 instead of 0. Otherwise returns `status`.
int end_of_output(const std::string& program, int status);

/// Runs `program()` and returns the exit status: its result, 2 for a UsageError, or 1 for another exception.
/// Errors are printed to standard error. `name` is the program's name.
int run_program(const std::string& name, const std::function<int()>& program);

class CommandLine {
 public:
  CommandLine(std::string name, const std::string& about);
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  /// Adds an option "--name VALUE" for a number, a string, an optional number, or a list of int or string. A
  /// bool becomes a flag without a value. The current content of `value` is the default, which --help shows.
  template <class T>
  void add(const std::string& name, T& value, const std::string& text, const OptionRules& rules = {});
  /// Gives the options that are added later a heading in --help.
  void group(const std::string& heading);
  /// Sets the last lines of --help.
  void footer(const std::string& text);
  /// True if the option was on the command line. Valid after parsing.
  bool given(const std::string& name) const;

  /// Parses arguments, without the name of the program. Returns false for --help and --version, which it
  /// prints. Throws UsageError.
  bool parse(const std::vector<std::string>& arguments);
  /// The same without printing and without an exception: returns what is wrong, or an empty string. `shown`
  /// gets the text of
  /// --help or --version; if it is null, these are wrong.
  std::string fault_of(std::vector<std::string> arguments, std::string* shown = nullptr);

  /// run_program() with parse() before it. Returns 0 for --help and --version, and 2 for invalid options.
  int run(int argc, char** argv, const std::function<int()>& program);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace apps
