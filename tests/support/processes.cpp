#include "tests/support/processes.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>

namespace distributed_test {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  if (!value) throw std::runtime_error(std::string(name) + " is not set: run by RankProcesses only");
  return value;
}

}  // namespace

RankProcesses::RankProcesses(const std::string& test_case, int size, const Variables& variables,
                             std::chrono::seconds limit)
    : limit_(std::chrono::steady_clock::now() + limit) {
  std::string name = (std::filesystem::temp_directory_path() / "tapestry_ranks_XXXXXX").string();
  if (!mkdtemp(name.data())) throw std::runtime_error("mkdtemp failed");
  folder_ = name;
  const std::string store = (folder_ / "store").string();
  store_ = tapestry::distributed::file_store(store);
  // Everything that the child needs is allocated before fork(). After fork() only async-signal-safe functions
  // may be called.
  std::vector<std::string> environment;
  for (char** e = environ; *e; ++e) environment.emplace_back(*e);
  environment.push_back("TEST_STORE=" + store);
  environment.push_back("TEST_SIZE=" + std::to_string(size));
  for (const auto& [key, value] : variables) environment.push_back(key + "=" + value);
  for (int rank = 0; rank < size; ++rank) {
    std::vector<std::string> own = environment;
    own.push_back("TEST_RANK=" + std::to_string(rank));
    std::vector<char*> envp, argv;
    for (std::string& text : own) envp.push_back(text.data());
    envp.push_back(nullptr);
    std::string self = std::filesystem::read_symlink("/proc/self/exe").string(), filter = test_case;
    argv = {self.data(), filter.data(), nullptr};
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe2 failed");
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      dup2(ends[1], STDOUT_FILENO);
      dup2(ends[1], STDERR_FILENO);
      execve(self.c_str(), argv.data(), envp.data());
      _exit(127);
    }
    close(ends[1]);
    Process& process = processes_.emplace_back();
    process.pid = pid;
    process.output = ends[0];
    if (pid < 0) throw std::runtime_error("fork failed");
  }
}

RankProcesses::~RankProcesses() {
  limit_ = {};
  for (std::size_t rank = 0; rank < processes_.size(); ++rank) wait(static_cast<int>(rank));
  for (const Process& process : processes_) close(process.output);
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

void RankProcesses::send_signal(int rank, int signal) {
  const Process& process = processes_[static_cast<std::size_t>(rank)];
  if (!process.ended && process.pid > 0) kill(process.pid, signal);
}

const Ended& RankProcesses::wait(int rank) {
  Process& process = processes_[static_cast<std::size_t>(rank)];
  bool open = true;
  while (!process.ended && process.pid > 0) {
    const auto now = std::chrono::steady_clock::now();
    if (now >= limit_) kill(process.pid, SIGKILL);
    pollfd ready{process.output, POLLIN, 0};
    if (open && poll(&ready, 1, 10) > 0) {
      char text[4096];
      const ssize_t n = read(process.output, text, sizeof text);
      if (n > 0) process.end.output.append(text, static_cast<std::size_t>(n));
      else open = false;
      if (n > 0) continue;
    }
    if (!open) usleep(1000);
    int status = 0;
    if (waitpid(process.pid, &status, WNOHANG) != process.pid) continue;
    process.ended = true;
    if (WIFEXITED(status)) process.end.exit_code = WEXITSTATUS(status);
    if (WIFSIGNALED(status)) process.end.signal = WTERMSIG(status);
    // Read the output that the child wrote between the last read and its exit.
    fcntl(process.output, F_SETFL, O_NONBLOCK);
    char text[4096];
    for (ssize_t n; (n = read(process.output, text, sizeof text)) > 0;)
      process.end.output.append(text, static_cast<std::size_t>(n));
  }
  return process.end;
}

ChildRank child_rank() {
  return {std::stoi(variable("TEST_RANK")), std::stoi(variable("TEST_SIZE")),
          tapestry::distributed::file_store(variable("TEST_STORE"))};
}

}  // namespace distributed_test
