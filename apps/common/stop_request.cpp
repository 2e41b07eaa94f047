#include "tapestry/apps/common/stop_request.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <system_error>

#include "tapestry/core/error.h"

namespace apps {

StopRequest::StopRequest() {
  sigemptyset(&signals_);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction action {};
    if (number != SIGTERM && sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN)
      continue;
    std::signal(number, SIG_DFL);  // an ignored SIGTERM would be discarded instead of blocked
    sigaddset(&signals_, number);
  }
  pthread_sigmask(SIG_BLOCK, &signals_, &before_);
  // A signal that was sent to this thread alone may be pending. The thread that watches for signals could not
  // read it, so it is taken here.
  const timespec now{};
  if (const int pending = sigtimedwait(&signals_, nullptr, &now); pending > 0) on_signal(pending);

  const auto give_up = [&](const std::string& why) {
    for (const int fd : {signal_fd_, end_fd_})
      if (fd >= 0) close(fd);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    tapestry::fail<tapestry::Error>("[StopRequest] cannot wait for signals: ", why,
                                    "; raise the limits of open files (ulimit -n) and processes (ulimit -u)");
  };
  signal_fd_ = signalfd(-1, &signals_, SFD_CLOEXEC | SFD_NONBLOCK);
  end_fd_ = eventfd(0, EFD_CLOEXEC);
  if (signal_fd_ < 0 || end_fd_ < 0) give_up(std::strerror(errno));
  try {
    thread_ = std::thread([this] { watch(); });
  } catch (const std::system_error& e) {
    give_up(e.what());
  }
}

StopRequest::~StopRequest() {
  const std::uint64_t one = 1;
  static_cast<void>(!write(end_fd_, &one, sizeof one));
  thread_.join();
  close(signal_fd_);
  close(end_fd_);
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

void StopRequest::watch() {
  pollfd fds[] = {{signal_fd_, POLLIN, 0}, {end_fd_, POLLIN, 0}};
  while (true) {
    if (poll(fds, 2, -1) < 0 && errno != EINTR) return;
    if (fds[1].revents) return;
    signalfd_siginfo info{};
    while (read(signal_fd_, &info, sizeof info) == sizeof info) on_signal(static_cast<int>(info.ssi_signo));
  }
}

void StopRequest::on_signal(int number) {
  const auto now = std::chrono::steady_clock::now();
  if (signal_ == 0) {
    first_ = now;
    signal_ = number;
  } else if (now - first_ >= kSameRequest) {
    sigset_t only;
    sigemptyset(&only);
    sigaddset(&only, number);
    pthread_sigmask(SIG_UNBLOCK, &only, nullptr);
    raise(number);
  }
}

std::string signal_name(int number) {
  const char* const name = sigabbrev_np(number);
  return name ? std::string("SIG") + name : "signal " + std::to_string(number);
}

}  // namespace apps
