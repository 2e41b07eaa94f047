#include "tests/apps/program.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <thread>

namespace tests {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

/// A pipe or a pseudoterminal that connects an output of the child to the test.
class Channel {
 public:
  explicit Channel(int columns = 0) {
    if (columns == 0) {
      std::array<int, 2> ends{};
      if (pipe2(ends.data(), O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
      ours_ = ends[0];
      theirs_ = ends[1];
    } else {
      ours_ = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
      if (ours_ < 0 || grantpt(ours_) != 0 || unlockpt(ours_) != 0) throw std::runtime_error("openpt");
      theirs_ = open(ptsname(ours_), O_RDWR | O_NOCTTY | O_CLOEXEC);
      const winsize size{
          .ws_row = 24, .ws_col = static_cast<unsigned short>(columns), .ws_xpixel = 0, .ws_ypixel = 0};
      if (theirs_ < 0 || ioctl(theirs_, TIOCSWINSZ, &size) != 0) throw std::runtime_error("terminal");
    }
    fcntl(ours_, F_SETFL, O_NONBLOCK);
  }
  ~Channel() {
    close(ours_);
    close_theirs();
  }
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  int ours() const { return ours_; }
  int theirs() const { return theirs_; }
  void close_theirs() {
    if (theirs_ >= 0) close(theirs_);
    theirs_ = -1;
  }
  /// Appends all available output to `text`, without waiting.
  void drain() {
    std::array<char, 4096> buffer;
    for (ssize_t n; (n = read(ours_, buffer.data(), buffer.size())) > 0;)
      text.append(buffer.data(), static_cast<std::size_t>(n));
  }
  std::string text;

 private:
  int ours_ = -1, theirs_ = -1;
};

/// Runs in the child between fork and exec, so it calls only async-signal-safe functions.
[[noreturn]] void become(const Launch& launch, char* const* argv, int out, int err) {
  setpgid(0, 0);
  signal(SIGINT, SIG_DFL);  // inherited as ignored if a shell started the tests in the background
  signal(SIGHUP, SIG_DFL);  // inherited as ignored under nohup
  dup2(open(launch.input.empty() ? "/dev/null" : launch.input.c_str(), O_RDONLY), STDIN_FILENO);
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  if (launch.largest_file != RLIM_INFINITY) {
    const rlimit limit{launch.largest_file, launch.largest_file};
    setrlimit(RLIMIT_FSIZE, &limit);
    signal(SIGXFSZ, SIG_IGN);  // write() then fails instead of killing the process, as on a full disk
  }
  if (launch.pending_signal != 0) {  // exec preserves pending signals and the signal mask
    sigset_t pending;
    sigemptyset(&pending);
    sigaddset(&pending, launch.pending_signal);
    signal(launch.pending_signal, SIG_DFL);
    sigprocmask(SIG_BLOCK, &pending, nullptr);
    raise(launch.pending_signal);
  }
  if (launch.ignored_signal != 0) signal(launch.ignored_signal, SIG_IGN);
  execv(argv[0], argv);
  _exit(127);
}

/// Waits up to a second for all processes of the group to end. Kills the rest and returns false if some
/// remain.
bool gone(pid_t group) {
  for (int i = 0; i < 200; ++i) {
    if (kill(-group, 0) != 0 && errno == ESRCH) return true;
    std::this_thread::sleep_for(5ms);
  }
  kill(-group, SIGKILL);
  return false;
}

}  // namespace

Ended run(const Launch& launch) {
  std::vector<std::string> words = {std::string(TAPESTRY_PROGRAMS "/") + launch.program};
  words.insert(words.end(), launch.arguments.begin(), launch.arguments.end());
  std::vector<char*> argv;
  std::string command;
  for (std::string& word : words) {
    argv.push_back(word.data());
    command += word + " ";
  }
  argv.push_back(nullptr);

  Channel out(launch.terminal_columns), err;
  const pid_t pid = fork();
  if (pid < 0) throw std::runtime_error("fork");
  if (pid == 0) become(launch, argv.data(), out.theirs(), err.theirs());
  setpgid(pid, pid);  // both parent and child call it, since either may run first
  out.close_theirs();
  err.close_theirs();

  // If no function of `launch` must be called meanwhile, poll() sleeps until the child writes or ends.
  const int child_end = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  const int pause_ms = child_end < 0 || launch.on_poll || launch.kill_when ? 1 : 100;
  const Clock::time_point end = Clock::now() + launch.limit;
  int status = 0;
  bool killed = false;
  while (waitpid(pid, &status, WNOHANG) == 0) {
    if (launch.on_poll) launch.on_poll(pid);
    const bool late = Clock::now() > end;
    if (!killed && (late || (launch.kill_when && launch.kill_when()))) {
      kill(-pid, SIGKILL);
      killed = true;
      if (late) {
        waitpid(pid, &status, 0);
        close(child_end);
        throw std::runtime_error("killed at its limit: " + command + "\n" + out.text + err.text);
      }
    }
    std::array<pollfd, 3> wait{{{out.ours(), POLLIN, 0}, {err.ours(), POLLIN, 0}, {child_end, POLLIN, 0}}};
    poll(wait.data(), wait.size(), pause_ms);
    out.drain();
    err.drain();
  }
  close(child_end);
  out.drain();
  err.drain();
  if (!gone(pid)) throw std::runtime_error("left a process behind: " + command);

  Ended ended{.out = out.text, .err = err.text};
  if (WIFEXITED(status)) ended.status = WEXITSTATUS(status);
  else ended.signal = WTERMSIG(status);
  return ended;
}

pid_t pid_of_rank(pid_t launcher, int rank) {
  const std::string variable = std::string(1, '\0') + "RANK=" + std::to_string(rank) + std::string(1, '\0');
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream stat(entry.path() / "stat"), environ(entry.path() / "environ");
    std::string text;
    std::getline(stat, text);
    const std::size_t command_end = text.rfind(')');  // followed by the state and the parent's id
    if (command_end == std::string::npos ||
        std::atoi(text.c_str() + std::min(command_end + 4, text.size())) != launcher)
      continue;
    std::string variables(1, '\0');
    std::getline(environ, text, '\n');
    if ((variables + text).find(variable) != std::string::npos) return std::stoi(name);
  }
  return -1;
}

Ended classifier(std::vector<std::string> arguments) {
  return run(Launch{.arguments = std::move(arguments)});
}

Launch on_ranks(int ranks, const std::string& app, const std::vector<std::string>& arguments) {
  std::vector<std::string> all = {"--nproc-per-node", std::to_string(ranks), TAPESTRY_PROGRAMS "/" + app};
  all.insert(all.end(), arguments.begin(), arguments.end());
  return {.arguments = all, .program = "tapestry-run"};
}

Launch two_ranks(const std::string& app, const std::vector<std::string>& arguments) {
  return on_ranks(2, app, arguments);
}

Ended on_two_ranks(const std::string& app, const std::vector<std::string>& arguments) {
  return run(two_ranks(app, arguments));
}

}  // namespace tests
