#pragma once
// Delivers signals to the launcher through a file descriptor that can be polled.
#include <optional>

#include "tapestry/distributed/launch/internal/output.h"

namespace tapestry::distributed::launch {

struct Signal {
  int number = 0;
  int pid = 0;  ///< for SIGCHLD: the first child that exited since the last SIGCHLD was read
};

/// Blocks SIGTERM, SIGCHLD, SIGINT and SIGHUP in the calling thread and threads that it starts later. SIGINT
/// and SIGHUP stay ignored if they are ignored: nohup ignores SIGHUP, and shells start background jobs with
/// SIGINT ignored. Ignores SIGPIPE. Installs no handlers; read() returns pending signals.
class Signals {
 public:
  Signals();
  int fd() const { return fd_.get(); }
  /// Returns the next pending signal, if any.
  std::optional<Signal> read() const;

 private:
  Fd fd_;
};

}  // namespace tapestry::distributed::launch
