#include "tapestry/distributed/launch/internal/output.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <utility>

#include "tapestry/core/error.h"
#include "tapestry/core/internal/lock_file.h"

namespace tapestry::distributed::launch {

void Terminal::line(bool to_err, std::string_view prefix, std::string_view text) {
  Stream& stream = to_err ? err_ : out_;
  if (stream.gone) return;
  if (queue_.empty()) progress_ = std::chrono::steady_clock::now();
  std::string entry;
  entry.reserve(prefix.size() + text.size() + 1);
  entry.append(prefix).append(text).append("\n");
  waiting_ += entry.size();
  queue_.push_back({&stream, std::move(entry)});
}

void Terminal::rank_line(bool to_err, std::string_view prefix, std::string_view text) {
  if (full() && stalled()) {
    ++discarded_;
    return;
  }
  line(to_err, prefix, text);
}

void Terminal::write_some() {
  if (queue_.empty()) return;
  Entry& entry = queue_.front();
  // A pipe that polls as writable accepts at least PIPE_BUF bytes.
  const std::size_t size = std::min<std::size_t>(entry.text.size() - written_, PIPE_BUF);
  const ssize_t n = entry.stream->gone ? -1 : ::write(entry.stream->fd, entry.text.data() + written_, size);
  if (n < 0) {
    if (!entry.stream->gone && (errno == EINTR || errno == EAGAIN)) return;
    entry.stream->gone = true;  // usually EPIPE, from `tapestry-run ... | head`; the job continues
  } else {
    written_ += static_cast<std::size_t>(n);
  }
  progress_ = std::chrono::steady_clock::now();
  if (!entry.stream->gone && written_ < entry.text.size()) return;
  waiting_ -= entry.text.size();
  written_ = 0;
  queue_.pop_front();
  if (discarded_ == 0 || full()) return;
  const auto patience = std::chrono::ceil<std::chrono::seconds>(patience_);
  line(true, "[tapestry-run] ",
       concat({std::exchange(discarded_, 0),
               " line(s) of the ranks are missing here, because nobody read this output for ",
               patience.count(), " s; --log-dir keeps all lines in files"}));
}

RankOutput::RankOutput(int rank, const std::string& log_path, bool show, Terminal& terminal)
    : prefix_("[" + std::to_string(rank) + "] "), log_path_(log_path), show_(show), terminal_(terminal) {
  for (Stream& stream : streams_) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
      fail<Error>("[tapestry-run] cannot create a pipe for rank ", rank, ": ", std::strerror(errno),
                  "; raise the limit of open files (ulimit -n)");
    stream.read_end = Fd(ends[0]);
    stream.write_end = Fd(ends[1]);
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
  }
  if (log_path.empty()) return;
  // The name is known in advance, so someone may have planted a link under it.
  std::string problem;
  log_ = Fd(open_regular_file(log_path, true, problem));
  check<IoError>(log_.open(), "[tapestry-run] the log ", log_path, " ", problem,
                 "; remove it, or choose another --log-dir");
  struct stat status {};
  if (fstat(log_.get(), &status) != 0 || status.st_uid != geteuid())
    fail<IoError>("[tapestry-run] the log ", log_path,
                  " belongs to another user, who could read or change it; remove it, or choose another "
                  "--log-dir");
  if (ftruncate(log_.get(), 0) != 0)
    fail<IoError>("[tapestry-run] the log ", log_path, " cannot be emptied: ", std::strerror(errno),
                  "; remove it, or choose another --log-dir");
}

void RankOutput::close_child_ends() {
  for (Stream& stream : streams_) stream.write_end.close();
}

bool RankOutput::read_some(int stream) {
  Stream& s = streams_[stream];
  if (!s.read_end.open()) return false;
  static std::array<char, 64 << 10> buffer;
  const ssize_t n = ::read(s.read_end.get(), buffer.data(), buffer.size());
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  const auto sink = [&](std::string_view text) { line(stream, text); };
  if (n <= 0) {
    s.splitter.finish(sink);
    s.read_end.close();
    return false;
  }
  const std::string_view bytes(buffer.data(), static_cast<std::size_t>(n));
  log(bytes);
  s.splitter.feed(bytes, sink);
  return true;
}

void RankOutput::drain() {
  for (int stream = 0; stream < kStreams; ++stream) {
    // Read at most what the largest pipe holds. A process that left the group may go on writing, and must not
    // keep the launcher here.
    for (int reads = 0; reads < 64 && read_some(stream); ++reads) {
    }
    Stream& s = streams_[stream];
    s.splitter.finish([&](std::string_view text) { line(stream, text); });
    s.read_end.close();
  }
}

void RankOutput::line(int stream, std::string_view text) {
  tail_.add(text);
  if (show_) terminal_.rank_line(stream == 1, prefix_, text);
}

void RankOutput::log(std::string_view bytes) {
  while (log_.open() && !bytes.empty()) {
    const ssize_t n = ::write(log_.get(), bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {  // a full disk must not end the job
      terminal_.line(true, prefix_,
                     concat({"[tapestry-run] ", log_path_, ": the log ends here: ", std::strerror(errno)}));
      log_.close();
      return;
    }
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
}

}  // namespace tapestry::distributed::launch
