#include "tapestry/distributed/launch/internal/guard.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "tapestry/core/error.h"
#include "tapestry/core/internal/limits.h"

namespace tapestry::distributed::launch {
namespace {

/// The guard's main loop. It must not allocate, because the forked process may have had several threads.
[[noreturn]] void guard(int socket) {
  setsid();
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_BLOCK, &all, nullptr);
  prctl(PR_SET_NAME, "tapestry-guard");
  const int null = open("/dev/null", O_RDWR);
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(null, fd);
  constexpr int kSocket = STDERR_FILENO + 1;
  if (socket != kSocket) dup2(socket, kSocket);
  if (close_range(kSocket + 1, ~0U, 0) != 0) {
    for (int fd = kSocket + 1; fd < 4096; ++fd) close(fd);
  }
  static int groups[4096];
  int* end = groups;
  for (int message;;) {
    const ssize_t n = recv(kSocket, &message, sizeof message, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n != sizeof message) break;
    if (message < 0) end = std::remove(groups, end, -message);
    else if (end < std::end(groups)) *end++ = message;
  }
  for (const int* group = groups; group < end; ++group) kill(-*group, SIGKILL);
  _exit(0);
}

}  // namespace

Guard::Guard() {
  if (getpid() == 1) return;
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    fail<Error>("[tapestry-run] cannot create a socket for the guard process: ", std::strerror(errno),
                "; raise the limit of open files (ulimit -n)");
  socket_ = Fd(ends[0]);
  const Fd theirs(ends[1]);
  const pid_t child = fork();
  if (child == 0) {
    if (fork() == 0) {
      close(ends[0]);
      guard(ends[1]);
    }
    _exit(0);
  }
  if (child < 0) {
    const int error = errno;  // process_limits() may change it
    fail<Error>("[tapestry-run] cannot start a process: ", std::strerror(error), detail::process_limits(),
                "; raise the limit, or end other processes");
  }
  waitpid(child, nullptr, 0);
}

Guard::~Guard() {
  if (!socket_.open()) return;
  shutdown(socket_.get(), SHUT_WR);
  char none;
  while (recv(socket_.get(), &none, 1, 0) < 0 && errno == EINTR) {  // wait until the guard has exited too
  }
}

void Guard::send(int message) const {
  // A failed write means that the guard was killed. That matters only if the launcher is killed too.
  if (socket_.open()) static_cast<void>(::send(socket_.get(), &message, sizeof message, MSG_NOSIGNAL));
}

}  // namespace tapestry::distributed::launch
