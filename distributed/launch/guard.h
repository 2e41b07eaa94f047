#pragma once
// What ends the ranks' own children when the launcher is killed. Not in tapestry.h: for the launcher.
#include "tapestry/distributed/launch/output.h"

namespace tapestry::distributed::launch {

/// The kernel ends a rank with its launcher (PR_SET_PDEATHSIG), but not what the rank started: the program
/// behind a wrapper script, say. A guard is a process of a session of its own, no child of ours, that knows
/// the ranks' process groups and kills those left over once it reads the end of its socket, which is when
/// this process is gone. It ends with that. As process 1 of a container we need none: the kernel does the
/// same.
class Guard {
 public:
  Guard();
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  /// For a child, before exec, with its own process group's number; safe after fork.
  void watch(int group) const { send(group); }
  /// After the group was killed and its leader not yet reaped.
  void forget(int group) const { send(-group); }

 private:
  void send(int message) const;
  Fd socket_;
};

}  // namespace tapestry::distributed::launch
