#pragma once
// SourceLocation: std::source_location, or a replacement for clang before version 16, which lacks the builtin
// that libstdc++'s std::source_location needs.
#include <source_location>

namespace tapestry {

#ifdef __cpp_lib_source_location
using SourceLocation = std::source_location;
#else
class SourceLocation {
 public:
  constexpr SourceLocation() = default;
  static constexpr SourceLocation current(const char* file = __builtin_FILE(),
                                          unsigned line = __builtin_LINE(),
                                          unsigned column = __builtin_COLUMN()) {
    SourceLocation here;
    here.file_ = file;
    here.line_ = line;
    here.column_ = column;
    return here;
  }
  constexpr const char* file_name() const { return file_; }
  constexpr unsigned line() const { return line_; }
  constexpr unsigned column() const { return column_; }

 private:
  const char* file_ = "";
  unsigned line_ = 0;
  unsigned column_ = 0;
};
#endif

}  // namespace tapestry
