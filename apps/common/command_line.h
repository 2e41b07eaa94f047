#pragma once
// What the small programs' command lines share. CLI11 parses them, and is seen by command_line.cpp alone:
// under sanitizers its headers take longer to compile than a program does.
#include <charconv>
#include <functional>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "tapestry/core/error.h"

namespace apps {

/// A command line that makes no sense. The exit status is then 2.
class UsageError : public tapestry::Error {
  using Error::Error;
};

/// What values an option takes.
struct Check {
  /// What is wrong with a value; nothing if all is well.
  std::function<std::string(const std::string&)> fault;
  std::string shown = {};  ///< in --help
};

/// Numbers of type T from `low` to `high`: not nan, nor -1 for an unsigned one.
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
  int count = 0;           ///< of values that a list has to have; 0: one or more
  bool commas = false;     ///< between values of a list, too
  bool last_wins = false;  ///< where it is given twice, which is an error otherwise
  bool hidden = false;     ///< not in --help
};

class CommandLine {
 public:
  CommandLine(std::string name, const std::string& about);
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  /// An option "--name VALUE" for a number, a text, an optional number, or a list of int or text; for a bool
  /// it has no value. What `value` holds is the default, which --help shows.
  template <class T>
  void add(const std::string& name, T& value, const std::string& text, const OptionRules& rules = {});
  /// The last lines of --help.
  void footer(const std::string& text);
  /// After parsing: the option was there.
  bool given(const std::string& name) const;

  /// Parses, then runs `program()`, whose result is the exit status: 0 also for --help, 1 for an error, 2 for
  /// wrong options (UsageError, where the program finds it). Errors go to standard error.
  int run(int argc, char** argv, const std::function<int()>& program);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace apps
