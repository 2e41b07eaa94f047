#pragma once
// Bytes that a rank writes, as lines. Not in tapestry.h: for the launcher and its tests.
#include <cstddef>
#include <deque>
#include <functional>
#include <string>
#include <string_view>

namespace tapestry::distributed::launch {

/// Cuts a stream of any bytes into lines, however they arrive. A line ends at '\n'; one of more than kMaxLine
/// bytes is handed on in pieces of that size, so that memory stays bounded.
class LineSplitter {
 public:
  static constexpr std::size_t kMaxLine = 64 << 10;
  /// A line (or a piece of one), without its '\n'.
  using Sink = std::function<void(std::string_view)>;

  void feed(std::string_view bytes, const Sink& sink);
  /// The end of the stream: what is left is a line, too.
  void finish(const Sink& sink);

 private:
  std::string partial_;
  bool cut_ = false;  // the line's beginning has been handed on already
};

/// The last lines of a rank, for when it fails.
class Tail {
 public:
  static constexpr std::size_t kLines = 20;
  static constexpr std::size_t kWidth = 1000;  ///< bytes kept of a line

  void add(std::string_view line);
  const std::deque<std::string>& lines() const { return lines_; }

 private:
  std::deque<std::string> lines_;
};

}  // namespace tapestry::distributed::launch
