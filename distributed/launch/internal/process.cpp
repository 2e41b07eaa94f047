#include "tapestry/distributed/launch/internal/process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "tapestry/core/error.h"
#include "tapestry/distributed/launch/internal/output.h"

namespace tapestry::distributed::launch {
namespace {

bool is_file(const std::string& path) {
  struct stat about {};
  return stat(path.c_str(), &about) == 0 && S_ISREG(about.st_mode);
}

bool may_run(const std::string& path) { return is_file(path) && access(path.c_str(), X_OK) == 0; }

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (std::string& s : strings) out.push_back(s.data());
  out.push_back(nullptr);
  return out;
}

/// Between fork and exec, only async-signal-safe calls are allowed, because the parent has threads (the
/// store's).
[[noreturn]] void become(const char* path, char** argv, char** envp, int in, int out, int err, int report,
                         pid_t launcher, const Guard& guard) {
  // Asks the kernel to kill this process when its parent exits. If the parent exited before this call, the
  // kernel will not, so check.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != launcher) _exit(127);
  setpgid(0, 0);
  guard.watch(getpid());
  for (int signal = 1; signal < NSIG; ++signal) {
    // If the launcher ignores these signals, the ranks ignore them too. Otherwise exec sets the default.
    if (signal == SIGHUP || signal == SIGINT) continue;
    struct sigaction action {};
    action.sa_handler = SIG_DFL;
    sigaction(signal, &action, nullptr);  // expected to fail for SIGKILL, SIGSTOP and libc's internal signals
  }
  dup2(in, STDIN_FILENO);
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  // Some libraries open descriptors without O_CLOEXEC. An inherited listening socket would keep its port in
  // use.
  if (close_range(STDERR_FILENO + 1, ~0U, CLOSE_RANGE_CLOEXEC) != 0) {
    for (int fd = STDERR_FILENO + 1; fd < 4096; ++fd) fcntl(fd, F_SETFD, FD_CLOEXEC);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execve(path, argv, envp);
  const int error = errno;
  static_cast<void>(!write(report, &error, sizeof error));
  _exit(127);
}

}  // namespace

std::string find_program(const std::string& program) {
  if (program.find('/') != std::string::npos) {
    check<IoError>(access(program.c_str(), F_OK) == 0, "[tapestry-run] cannot find the program ", program);
    check<IoError>(is_file(program), "[tapestry-run] ", program, " is not a regular file");
    check<IoError>(may_run(program), "[tapestry-run] ", program, " is not executable: chmod +x ", program,
                   ", or name its interpreter first");
    return program;
  }
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path ? path : "/usr/local/bin:/usr/bin:/bin");
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string candidate = (folder.empty() ? "." : folder) + "/" + program;
    if (may_run(candidate)) return candidate;
  }
  fail<IoError>("[tapestry-run] cannot find the program ", program, " in PATH",
                is_file(program) ? "; for the one in this folder write ./" + program : std::string());
}

Started start_process(const std::string& path, const std::vector<std::string>& command,
                      const Variables& environment, int out, int err, const Guard& guard) {
  std::vector<std::string> arguments = command;
  std::vector<std::string> variables;
  for (const auto& [name, value] : environment) variables.push_back(name + "=" + value);
  const std::vector<char*> argv = pointers(arguments), envp = pointers(variables);

  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return {-1, errno};
  Fd report(ends[0]), report_for_child(ends[1]);
  const Fd null(open("/dev/null", O_RDONLY | O_CLOEXEC));

  const pid_t launcher = getpid();
  const pid_t pid = fork();
  if (pid < 0) return {-1, errno};
  if (pid == 0)
    become(path.c_str(), const_cast<char**>(argv.data()), const_cast<char**>(envp.data()), null.get(), out,
           err, report_for_child.get(), launcher, guard);
  report_for_child.close();
  int error = 0;
  ssize_t n;
  do n = read(report.get(), &error, sizeof error);
  while (n < 0 && errno == EINTR);
  if (n <= 0) return {pid, 0};  // exec succeeded and closed the pipe
  guard.forget(pid);
  waitpid(pid, nullptr, 0);
  return {-1, error};
}

void signal_group(int pid, int signal) {
  if (pid > 0) kill(-pid, signal);
}

}  // namespace tapestry::distributed::launch
