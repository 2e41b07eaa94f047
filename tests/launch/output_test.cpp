#include "tapestry/distributed/launch/internal/output.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>

#include "tapestry/core/error.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"

using namespace tapestry::distributed::launch;

namespace {

struct Pipe {
  Pipe() {
    int ends[2];
    REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
    read_end = Fd(ends[0]);
    write_end = Fd(ends[1]);
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
  }
  std::string take() {
    char bytes[4096];
    std::string text;
    for (ssize_t n; (n = read(read_end.get(), bytes, sizeof bytes)) > 0;) text.append(bytes, n);
    return text;
  }
  Fd read_end, write_end;
};

/// Writes what can be written without blocking, like the launcher's loop.
void write_ready(Terminal& terminal) {
  for (;;) {
    pollfd fd{terminal.pending(), POLLOUT, 0};
    if (fd.fd < 0 || poll(&fd, 1, 0) <= 0) return;
    terminal.write_some();
  }
}

void put(int fd, const std::string& bytes) {
  REQUIRE(write(fd, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
}

}  // namespace

TEST_CASE("lines keep their order, their stream and their prefix") {
  Pipe out, err;
  Terminal terminal(out.write_end.get(), err.write_end.get());
  CHECK(terminal.pending() == -1);
  terminal.line(false, "[0] ", "a");
  terminal.line(true, "[1] ", std::string("b\0c", 3));
  terminal.line(false, "[1] ", "");
  CHECK(terminal.pending() == out.write_end.get());
  write_ready(terminal);
  CHECK(terminal.pending() == -1);
  CHECK(out.take() == "[0] a\n[1] \n");
  CHECK(err.take() == std::string("[1] b\0c\n", 8));
}

TEST_CASE("a stopped reader does not block the launcher, and lines are not mixed if both streams are one") {
  Pipe both;
  Terminal terminal(both.write_end.get(), both.write_end.get());
  std::string expected;
  for (int i = 0; i < 300; ++i) {
    const std::string line(static_cast<std::size_t>(37 * i), static_cast<char>('a' + i % 26));
    terminal.line(i % 2 == 1, "[3] ", line);
    expected += "[3] " + line + "\n";
  }
  CHECK(terminal.full());
  write_ready(terminal);  // returns although the pipe cannot hold everything
  CHECK(terminal.pending() >= 0);
  std::string got;
  while (terminal.pending() >= 0) {
    got += both.take();
    write_ready(terminal);
  }
  got += both.take();
  CHECK((got == expected));
  CHECK_FALSE(terminal.full());
}

TEST_CASE("lines of ranks are discarded, and counted, if nobody reads for too long") {
  Pipe both;
  Terminal terminal(both.write_end.get(), both.write_end.get(), std::chrono::milliseconds(200));
  const std::string line(1000, 'x');
  int lines = 0;
  for (; !terminal.full(); ++lines) terminal.rank_line(false, "[0] ", line);
  write_ready(terminal);  // fills the pipe
  for (; !terminal.full(); ++lines) terminal.rank_line(false, "[0] ", line);
  CHECK(terminal.waits());
  usleep(250'000);
  CHECK_FALSE(terminal.waits());  // the launcher reads from its ranks again, so that they do not block
  for (int i = 0; i < 5; ++i) terminal.rank_line(false, "[0] ", line);
  terminal.line(true, "[tapestry-run] ", "kept");
  std::string got;
  while (terminal.pending() >= 0) {
    got += both.take();
    write_ready(terminal);
  }
  got += both.take();
  CHECK(std::count(got.begin(), got.end(), '\n') == lines + 2);
  CHECK_THAT(got, ContainsSubstring("[tapestry-run] kept\n"));
  CHECK_THAT(
      got, ContainsSubstring("[tapestry-run] 5 line(s) of the ranks are missing here, because nobody read"));
}

TEST_CASE("a pipe that cannot be created is reported with its own error") {
  Pipe out, err;
  Terminal terminal(out.write_end.get(), err.write_end.get());
  rlimit files{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &files) == 0);
  const rlimit none{.rlim_cur = 3, .rlim_max = files.rlim_max};
  std::string error;
  REQUIRE(setrlimit(RLIMIT_NOFILE, &none) == 0);
  errno = ENOENT;  // of an earlier call
  try {
    RankOutput(1, "", true, terminal);
  } catch (const tapestry::Error& e) {
    error = e.what();
  }
  setrlimit(RLIMIT_NOFILE, &files);
  CHECK_THAT(error, ContainsSubstring("cannot create a pipe for rank 1: Too many open files"));
}

TEST_CASE("after a reader closes one stream, the other stream continues") {
  const auto before = std::signal(SIGPIPE, SIG_IGN);
  Pipe out, err;
  Terminal terminal(out.write_end.get(), err.write_end.get());
  out.read_end.close();
  for (int i = 0; i < 10; ++i) {
    terminal.line(false, "", "lost");
    terminal.line(true, "", "kept");
  }
  write_ready(terminal);
  CHECK(terminal.pending() == -1);
  CHECK(err.take() == "kept\nkept\nkept\nkept\nkept\nkept\nkept\nkept\nkept\nkept\n");
  terminal.line(false, "", "lost");
  CHECK(terminal.pending() == -1);
  std::signal(SIGPIPE, before);
}

TEST_CASE("a rank's output has a prefix on the terminal and none in the log") {
  const tests::TempDir folder;
  Pipe out, err;
  Terminal terminal(out.write_end.get(), err.write_end.get());
  RankOutput rank(7, folder / "rank_7.log", true, terminal);
  CHECK_FALSE(rank.read_some(0));
  put(rank.out_for_child(), "one\ntw");
  CHECK(rank.read_some(0));
  put(rank.err_for_child(), std::string("e\0\xff\n", 4));
  CHECK(rank.read_some(1));
  put(rank.out_for_child(), "o\nend");
  rank.close_child_ends();
  rank.drain();
  CHECK(rank.fd(0) == -1);
  CHECK(rank.fd(1) == -1);
  write_ready(terminal);
  CHECK(out.take() == "[7] one\n[7] two\n[7] end\n");
  CHECK(err.take() == std::string("[7] e\0\xff\n", 8));
  CHECK(tests::read_file(folder / "rank_7.log") == std::string("one\ntwe\0\xff\no\nend", 15));
  CHECK(rank.tail().lines() == std::deque<std::string>{"one", std::string("e\0\xff", 3), "two", "end"});
}

TEST_CASE("drain returns although another process holds the pipe") {
  Pipe out, err;
  Terminal terminal(out.write_end.get(), err.write_end.get());
  RankOutput rank(0, "", true, terminal);
  const Fd escaped(dup(rank.out_for_child()));
  put(escaped.get(), "last words");
  rank.close_child_ends();
  rank.drain();
  CHECK(rank.fd(0) == -1);
  write_ready(terminal);
  CHECK(out.take() == "[0] last words\n");
}

TEST_CASE("hidden output goes to the log and to the last lines") {
  const tests::TempDir folder;
  Pipe out, err;
  Terminal terminal(out.write_end.get(), err.write_end.get());
  RankOutput rank(1, folder / "log", false, terminal);
  put(rank.out_for_child(), "quiet\n");
  rank.close_child_ends();
  rank.drain();
  CHECK(terminal.pending() == -1);
  CHECK(rank.tail().lines() == std::deque<std::string>{"quiet"});
  CHECK(tests::read_file(folder / "log") == "quiet\n");
}

TEST_CASE("a log that cannot be opened is an error; a log that cannot grow is not") {
  const tests::TempDir folder;
  Pipe out, err;
  Terminal terminal(out.write_end.get(), err.write_end.get());
  CHECK_THROWS_AS(RankOutput(1, folder / "none/log", true, terminal), tapestry::IoError);
  CHECK_THROWS_WITH(RankOutput(1, folder / "none/log", true, terminal), ContainsSubstring("none/log"));

  RankOutput rank(1, folder / "log", true, terminal);
  put(rank.out_for_child(), std::string(5000, 'x').append("\n"));
  {
    const tests::FileSizeLimit full(1000);
    CHECK(rank.read_some(0));
  }
  put(rank.out_for_child(), "and on\n");
  CHECK(rank.read_some(0));
  write_ready(terminal);
  CHECK_THAT(out.take(), ContainsSubstring("[1] and on\n"));
  CHECK_THAT(err.take(), ContainsSubstring("log ends here"));
}
