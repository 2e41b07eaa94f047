#pragma once
// Kills the ranks' children if the launcher is killed.
#include "tapestry/distributed/launch/internal/output.h"

namespace tapestry::distributed::launch {

/// Kills the ranks' process groups if the launcher is killed. The kernel kills a rank together with its
/// launcher (PR_SET_PDEATHSIG), but not the rank's own children, such as the program that a wrapper script
/// started. The guard is a process in its own session that knows the ranks' process groups. When the launcher
/// exits, the guard reads end-of-file from its socket, kills the remaining groups, and exits. If the launcher
/// is process 1 of a container, no guard is needed, because the kernel then kills all processes of the
/// container.
class Guard {
 public:
  Guard();
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  /// Registers a process group. A child calls it before exec with its own group; it is async-signal-safe.
  void watch(int group) const { send(group); }
  /// Unregisters a group. Call it after the group was killed and before its leader is reaped.
  void forget(int group) const { send(-group); }

 private:
  void send(int message) const;
  Fd socket_;
};

}  // namespace tapestry::distributed::launch
