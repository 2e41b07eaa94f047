#pragma once
// Delivers signals to the launcher through a file descriptor that can be polled.
#include <optional>

#include "tapestry/distributed/launch/internal/output.h"

namespace tapestry::distributed::launch {

struct Signal {
  int number = 0;
  int pid = 0;  ///< for SIGCHLD: the first child that exited since the last SIGCHLD was read
};

/// Blocks SIGINT, SIGTERM, SIGCHLD, and SIGHUP unless it is ignored (as under nohup), in the calling thread
/// and threads that it starts later. Ignores SIGPIPE. Installs no handlers; read() returns pending signals.
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
