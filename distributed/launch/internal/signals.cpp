#include "tapestry/distributed/launch/internal/signals.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "tapestry/core/error.h"

namespace tapestry::distributed::launch {

Signals::Signals() {
  struct sigaction action {};
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGTERM, SIGCHLD}) sigaddset(&set, signal);
  for (const int signal : {SIGINT, SIGHUP})
    if (sigaction(signal, nullptr, &action) == 0 && action.sa_handler != SIG_IGN) sigaddset(&set, signal);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);

  // Some parents leave SIGCHLD ignored, and then exits of children go unnoticed. SA_NOCLDSTOP: a stopped
  // child has not exited.
  action = {};
  action.sa_handler = SIG_DFL;
  action.sa_flags = SA_NOCLDSTOP;
  sigaction(SIGCHLD, &action, nullptr);
  std::signal(SIGPIPE, SIG_IGN);

  fd_ = Fd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd_.open())
    fail<Error>("[tapestry-run] cannot create a signal descriptor: ", std::strerror(errno),
                "; raise the limit of open files (ulimit -n)");
}

std::optional<Signal> Signals::read() const {
  signalfd_siginfo info{};
  if (::read(fd_.get(), &info, sizeof info) != sizeof info) return std::nullopt;
  return Signal{static_cast<int>(info.ssi_signo), static_cast<int>(info.ssi_pid)};
}

}  // namespace tapestry::distributed::launch
