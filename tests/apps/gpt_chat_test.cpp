// `gpt chat` and `gpt generate` on a terminal: what Ctrl-C does.
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "tests/apps/gpt_files.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"

using namespace tests;
using namespace std::chrono_literals;

namespace {

/// A program on a terminal of its own. Every wait is bounded.
class Terminal {
 public:
  explicit Terminal(std::vector<std::string> words) {
    words.insert(words.begin(), TAPESTRY_PROGRAMS "/gpt");
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    const winsize size{.ws_row = 24, .ws_col = 200, .ws_xpixel = 0, .ws_ypixel = 0};
    child_ = forkpty(&ours_, nullptr, nullptr, &size);
    REQUIRE(child_ >= 0);
    if (child_ == 0) {
      signal(SIGINT, SIG_DFL);  // a shell that started the tests in the background has ignored it
      execv(argv[0], argv.data());
      _exit(127);
    }
    fcntl(ours_, F_SETFL, O_NONBLOCK);
  }
  ~Terminal() {
    if (!ended_) {
      kill(child_, SIGKILL);
      waitpid(child_, nullptr, 0);
    }
    close(ours_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  void type(const std::string& text) {
    REQUIRE(write(ours_, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  }
  /// Waits until the program has written this after what earlier calls have found. Returns what is before it.
  std::string until(const std::string& text) {
    const auto end = std::chrono::steady_clock::now() + 40s;
    std::size_t at = 0;
    while ((at = seen_.find(text, from_)) == std::string::npos) {
      INFO("wrote: " << seen_);
      REQUIRE(std::chrono::steady_clock::now() < end);
      read_some();
    }
    std::string before = seen_.substr(from_, at - from_);
    from_ = at + text.size();
    return before;
  }
  /// Waits until the program has written anything after what earlier calls have found.
  void until_more() {
    const auto end = std::chrono::steady_clock::now() + 40s;
    while (seen_.size() == from_) {
      REQUIRE(std::chrono::steady_clock::now() < end);
      read_some();
    }
  }
  /// Waits for the end and returns what waitpid() says.
  int end() {
    const auto end = std::chrono::steady_clock::now() + 40s;
    int status = 0;
    while (waitpid(child_, &status, WNOHANG) == 0) {
      INFO("wrote: " << seen_);
      REQUIRE(std::chrono::steady_clock::now() < end);
      read_some();
    }
    ended_ = true;
    return status;
  }

 private:
  void read_some() {
    pollfd in{ours_, POLLIN, 0};
    poll(&in, 1, 20);
    char part[4096];
    const ssize_t n = read(ours_, part, sizeof part);
    if (n > 0) seen_.append(part, static_cast<std::size_t>(n));
    else std::this_thread::sleep_for(1ms);
  }
  pid_t child_ = -1;
  int ours_ = -1;
  bool ended_ = false;
  std::string seen_;
  std::size_t from_ = 0;
};

const std::string kCtrlC = "\x03";

}  // namespace

TEST_CASE("Ctrl-C ends an answer of gpt chat and keeps the conversation, and twice ends the program") {
  const TempDir folder;
  const std::string model = write_model_folder(folder / "model", "llama", 30'000);
  Terminal chat({"chat", "--model", model, "--max-tokens", "20000", "--temperature", "0", "--threads", "1"});
  chat.until("> ");
  std::string answers[2];
  for (std::string& answer : answers) {
    chat.type("the cat\n");
    chat.until("the cat\r\n");  // the echo, which the terminal writes before the program reads the line
    chat.until_more();          // the answer has begun
    chat.type(kCtrlC);
    answer = chat.until("(stopped)\r\n");
    chat.until("> ");
    chat.type("/reset\n");
    chat.until("(a new conversation)\r\n");
    chat.until("> ");
  }
  CHECK(answers[0].size() + answers[1].size() > 4);  // the echo of Ctrl-C, and words
  // At the prompt, the first Ctrl-C drops the line, and the program goes on.
  chat.type("half a line");
  chat.until("half a line");
  chat.type(kCtrlC);
  chat.until("(Ctrl-C again ends the program, and so does /quit)\r\n");
  chat.type("/reset\n");
  chat.until("(a new conversation)\r\n");
  chat.until("> ");
  chat.type(kCtrlC);
  chat.until("(Ctrl-C again ends the program, and so does /quit)\r\n");
  std::this_thread::sleep_for(300ms);  // signals that follow within 250 ms are one
  chat.type(kCtrlC);
  const int status = chat.end();
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGINT);
}

TEST_CASE("Ctrl-C ends gpt generate, while it waits for a prompt and while it writes") {
  const TempDir folder;
  const std::string model = write_model_folder(folder / "model", "llama", 30'000);
  Terminal waiting({"generate", "--model", model});
  waiting.until("ended by Ctrl-D");
  waiting.type(kCtrlC);
  CHECK(WIFSIGNALED(waiting.end()));
  Terminal writing({"generate", "--model", model, "--prompt", "the cat", "--max-tokens", "29000", "--threads",
                    "1", "--ignore-eos", "--temperature", "0"});
  writing.until_more();
  writing.type(kCtrlC);
  const int status = writing.end();
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 130);
}
