#pragma once
// Turns the errors of the machine and of the runtime into reports that read like those of compute-sanitizer:
// the name of a check, what happened, and what to do.
#include <map>
#include <string>

namespace tapestry::ptx {

/// A check as reports name it, such as "memcheck: out of bounds". The words before the colon are those of
/// compute-sanitizer's tools; streams, calls and leaks are ours.
struct Check {
  std::string name;
  std::string advice;
};
/// The check that found this error.
Check check_of(const std::string& message);

/// Collects the errors of a run.
class Reports {
 public:
  /// Formats an error. The same error again is counted, and gives an empty text.
  std::string add(const std::string& message);
  /// "2 errors: memcheck 1, racecheck 1", or "no errors".
  std::string summary() const;
  int count() const { return count_; }

 private:
  int count_ = 0;
  std::map<std::string, int> by_tool_, seen_;
};

}  // namespace tapestry::ptx
