#pragma once
// Splits the output of a rank into lines.
#include <cstddef>
#include <deque>
#include <functional>
#include <string>
#include <string_view>

namespace tapestry::distributed::launch {

/// Splits a byte stream into lines. A line ends at a newline. A line of more than kMaxLine bytes is delivered
/// in pieces of that size, so that memory is bounded.
class LineSplitter {
 public:
  static constexpr std::size_t kMaxLine = 64 << 10;
  /// Receives a line, or a piece of one, without a newline.
  using Sink = std::function<void(std::string_view)>;

  void feed(std::string_view bytes, const Sink& sink);
  /// Ends the stream. Remaining bytes are delivered as a line.
  void finish(const Sink& sink);

 private:
  std::string partial_;
  bool cut_ = false;  // a piece of the current line has been delivered already
};

/// Keeps the last lines of a rank, to repeat them if it fails.
class Tail {
 public:
  static constexpr std::size_t kLines = 20;
  static constexpr std::size_t kWidth = 1000;  ///< bytes kept per line

  void add(std::string_view line);
  const std::deque<std::string>& lines() const { return lines_; }

 private:
  std::deque<std::string> lines_;
};

}  // namespace tapestry::distributed::launch
