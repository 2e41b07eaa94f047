#include "tests/docs/prints.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>

#include "tests/support/catch.h"
#include "tests/support/files.h"

namespace {

// Replaces white space of any length by one space, and drops it at the ends.
std::string folded(const std::string& text) {
  std::istringstream words(text);
  std::string all;
  for (std::string word; words >> word;) all += (all.empty() ? "" : " ") + word;
  return all;
}

// The first part of `quoted` that `printed` lacks, or nothing. White space of any length counts as one space,
// so that a page may break a long line. "..." matches any text.
std::string missing(const std::string& quoted, const std::string& printed) {
  std::string wanted = folded(quoted), rest = folded(printed);
  for (bool anchored = true;; anchored = false) {  // the first part begins the output
    const std::size_t dots = wanted.find("...");
    const std::string part = wanted.substr(0, dots);
    const bool last = dots == std::string::npos;
    const std::size_t at =
        last && !anchored ? rest.rfind(part) : rest.find(part);  // the last part ends the output
    if (at == std::string::npos || (anchored && at != 0)) return part;
    rest = rest.substr(at + part.size());
    if (last) return rest.empty() ? "" : "the end, but there is more: " + rest;
    wanted = wanted.substr(dots + 3);
  }
}

// Sends stdout and stderr to a file while it exists.
class Capture {
 public:
  Capture() {
    flush();
    const int file = ::open(path_.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
    REQUIRE(file >= 0);
    ::dup2(file, 1);
    ::dup2(file, 2);
    ::close(file);
  }
  ~Capture() { end(); }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  // Ends the capture and returns the text.
  std::string end() {
    if (out_ < 0) return "";
    flush();
    ::dup2(out_, 1);
    ::dup2(error_, 2);
    ::close(out_);
    ::close(error_);
    out_ = error_ = -1;
    return tests::read_file(path_);
  }

 private:
  static void flush() {
    std::cout.flush();
    std::fflush(nullptr);
  }

  const tests::TempDir folder_;
  const std::string path_ = folder_ / "printed";
  int out_ = ::fcntl(1, F_DUPFD_CLOEXEC, 3), error_ = ::fcntl(2, F_DUPFD_CLOEXEC, 3);
};

}  // namespace

void tests::prints(const std::string& place, const std::string& quoted, const std::function<void()>& code) {
  Capture capture;
  std::string thrown;
  try {
    code();
  } catch (const std::exception& e) {
    thrown = e.what();
  }
  const std::string printed = capture.end(), expected = missing(quoted, printed);
  INFO(place << "\nexpected: " << expected << "\nprinted:\n" << printed);
  CHECK(thrown == "");
  CHECK(expected == "");
}

void tests::run_program(const std::string& command) {
  const int status = std::system(("set -e; PATH=\"" TAPESTRY_PROGRAMS ":$PATH\"\n" + command).c_str());
  if (status != 0) throw std::runtime_error(command + " failed: status " + std::to_string(status));
}

TEST_CASE("what a page says is compared with what its code prints") {
  CHECK(missing("a b\nc", " a\n\nb c\n") == "");
  CHECK(missing("a ... c ... e", "a b c d e") == "");
  CHECK(missing("... 1 ms", "1 ms 2 1 ms") == "");  // the last part is the end
  CHECK(missing("a...", "a b") == "");
  CHECK(missing("", "") == "");
  CHECK(missing("b", "a b") == "b");
  CHECK(missing("a", "a b") == "the end, but there is more:  b");
  CHECK(missing("a ... x ... c", "a b c") == " x ");
  CHECK(missing("...c", "a c d") == "the end, but there is more:  d");
  CHECK(missing("a", "") == "a");
  Capture capture;
  std::printf("1 ");
  std::cout << "2 ";
  std::fflush(stdout);
  std::cout.flush();
  std::fprintf(stderr, "3 ");
  CHECK(std::system("echo 4") == 0);
  CHECK(capture.end() == "1 2 3 4\n");
}
