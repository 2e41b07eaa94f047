#pragma once
// Where the ranks' output goes: the launcher's own stdout and stderr, and log files. Not in tapestry.h: for
// the launcher and its tests.
#include <cstddef>
#include <deque>
#include <string>
#include <string_view>

#include "tapestry/distributed/launch/lines.h"

namespace tapestry::distributed::launch {

/// A file descriptor that closes itself.
class Fd {
 public:
  explicit Fd(int fd = -1) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(other.release()) {}
  Fd& operator=(Fd&& other) noexcept;
  ~Fd() { close(); }
  int get() const { return fd_; }
  bool open() const { return fd_ >= 0; }
  int release();
  void close();

 private:
  int fd_;
};

/// Lines on their way to stdout and stderr, in one queue so that their order holds and none is torn by
/// another, also when both are the same terminal. Nothing here blocks: a reader that has stopped (less,
/// Ctrl-S) must not keep the launcher from watching its ranks.
class Terminal {
 public:
  /// More than this waiting, and ranks are no longer read from until some of it is gone.
  static constexpr std::size_t kFull = 1 << 20;

  Terminal(int out, int err) : out_{out}, err_{err} {}
  /// A line on stdout or stderr; `prefix` and '\n' are added.
  void line(bool to_err, std::string_view prefix, std::string_view text);
  bool full() const { return waiting_ > kFull; }
  /// The descriptor to poll for POLLOUT, -1 if nothing waits.
  int pending() const { return queue_.empty() ? -1 : queue_.front().stream->fd; }
  /// Writes a piece that does not block; call it when poll says so. A stream whose reader has gone swallows
  /// what comes.
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
  Stream out_, err_;
  std::deque<Entry> queue_;
  std::size_t written_ = 0;  // of the first entry
  std::size_t waiting_ = 0;
};

/// The two pipes of one rank, read without blocking.
class RankOutput {
 public:
  /// Creates the pipes. An empty `log_path` keeps no log; IoError if it cannot be written. `show`: on the
  /// terminal as well.
  RankOutput(int rank, const std::string& log_path, bool show, Terminal& terminal);

  /// For the child, which gets them as its stdout and stderr; closed here after it has been started.
  int out_for_child() const { return streams_[0].write_end.get(); }
  int err_for_child() const { return streams_[1].write_end.get(); }
  void close_child_ends();

  static constexpr int kStreams = 2;
  /// To poll for POLLIN; -1 after its end.
  int fd(int stream) const { return streams_[stream].read_end.get(); }
  /// Reads once. False if nothing is there (yet, or any more).
  bool read_some(int stream);
  /// Reads what is there and ends the lines: the rank is dead, and whoever else holds its pipe is not heard.
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
