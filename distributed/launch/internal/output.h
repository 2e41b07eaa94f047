#pragma once
// Writes the ranks' output to the launcher's stdout and stderr and to log files.
#include <chrono>
#include <cstddef>
#include <deque>
#include <string>
#include <string_view>

#include "tapestry/distributed/comm/internal/fd.h"
#include "tapestry/distributed/launch/internal/lines.h"

namespace tapestry::distributed::launch {

using distributed::Fd;

/// Queues lines for stdout and stderr in one queue, so that their order is kept and lines are not mixed, even
/// if both are the same terminal. Writing never blocks: a stopped reader (less, Ctrl-S) must not stop the
/// launcher from watching its ranks.
class Terminal {
 public:
  /// If more bytes than this are queued, the launcher stops reading from ranks until some have been written.
  static constexpr std::size_t kFull = 1 << 20;
  /// If nothing could be written for this long, the launcher reads again and discards the ranks' lines. A
  /// rank whose pipe stays full would block, and all other ranks would wait for it.
  static constexpr std::chrono::seconds kPatience{30};

  Terminal(int out, int err, std::chrono::milliseconds patience = kPatience)
      : out_{out}, err_{err}, patience_(patience) {}
  /// Queues a line for stdout or stderr. Adds `prefix` and a newline.
  void line(bool to_err, std::string_view prefix, std::string_view text);
  /// Queues a line of a rank, or discards it after kPatience. When somebody reads again, a message tells how
  /// many lines are missing.
  void rank_line(bool to_err, std::string_view prefix, std::string_view text);
  bool full() const { return waiting_ > kFull; }
  /// True if the launcher must not read from ranks now.
  bool waits() const { return full() && !stalled(); }
  /// The time since something was written, or since the queue was empty.
  std::chrono::steady_clock::duration idle() const { return std::chrono::steady_clock::now() - progress_; }
  /// Returns the descriptor to poll for POLLOUT, or -1 if the queue is empty.
  int pending() const { return queue_.empty() ? -1 : queue_.front().stream->fd; }
  /// Writes as much as possible without blocking. Call it after POLLOUT. If the reader has closed the stream,
  /// its lines are discarded.
  void write_some();

 private:
  struct Stream {
    int fd;
    bool gone = false;
  };
  struct Entry {
    Stream* stream;
    std::string text;
  };
  bool stalled() const { return idle() >= patience_; }

  Stream out_, err_;
  const std::chrono::milliseconds patience_;
  std::chrono::steady_clock::time_point progress_{};
  std::size_t discarded_ = 0;  // lines since the last message about it
  std::deque<Entry> queue_;
  std::size_t written_ = 0;  // bytes of the first entry that have been written
  std::size_t waiting_ = 0;
};

/// The stdout and stderr pipes of one rank, read without blocking.
class RankOutput {
 public:
  /// Creates the pipes, or throws Error if the system has no descriptors left. If `log_path` is empty, there
  /// is no log. An existing log is overwritten. Throws IoError if the log is a symbolic link, is not a
  /// regular file, has a second hard link, belongs to another user, or cannot be opened or emptied. If `show`
  /// is set, lines also go to the terminal.
  RankOutput(int rank, const std::string& log_path, bool show, Terminal& terminal);

  /// The child's stdout. It is closed here after the child has started.
  int out_for_child() const { return streams_[0].write_end.get(); }
  int err_for_child() const { return streams_[1].write_end.get(); }
  void close_child_ends();

  static constexpr int kStreams = 2;
  /// Returns the descriptor to poll for POLLIN, or -1 after the end of the stream.
  int fd(int stream) const { return streams_[stream].read_end.get(); }
  /// Reads once. Returns false if there is nothing to read, now or ever.
  bool read_some(int stream);
  /// Reads what the pipes hold and ends the last line. Call it after the rank has exited. Later writes of
  /// other processes that hold the pipe are ignored.
  void drain();
  const Tail& tail() const { return tail_; }

 private:
  struct Stream {
    Fd read_end, write_end;
    LineSplitter splitter;
  };
  void line(int stream, std::string_view text);
  void log(std::string_view bytes);

  std::string prefix_, log_path_;
  bool show_;
  Terminal& terminal_;
  Stream streams_[kStreams];
  Fd log_;
  Tail tail_;
};

}  // namespace tapestry::distributed::launch
