#pragma once
// Signals to the launcher, as something to poll. Not in tapestry.h: for the launcher.
#include <optional>

#include "tapestry/distributed/launch/output.h"

namespace tapestry::distributed::launch {

struct Signal {
  int number = 0;
  int pid = 0;  ///< of SIGCHLD: the first of the children that ended since the last one was read
};

/// Blocks SIGINT, SIGTERM, SIGHUP (unless it is ignored, as under nohup) and SIGCHLD in the calling thread
/// and those it starts from now on, and ignores SIGPIPE. There are no handlers.
class Signals {
 public:
  Signals();
  int fd() const { return fd_.get(); }
  /// The next one that is pending.
  std::optional<Signal> read() const;

 private:
  Fd fd_;
};

}  // namespace tapestry::distributed::launch
