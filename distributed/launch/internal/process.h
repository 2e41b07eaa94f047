#pragma once
// Starts one rank.
#include <string>
#include <vector>

#include "tapestry/distributed/launch/internal/guard.h"
#include "tapestry/distributed/launch/internal/options.h"

namespace tapestry::distributed::launch {

/// Finds `program` like a shell: a path with '/' is used as it is; a name is searched in $PATH. Throws
/// IoError that says why there is no executable.
std::string find_program(const std::string& program);

struct Started {
  int pid = -1;   ///< also the process group; -1 if the start failed
  int error = 0;  ///< errno of the call that failed
};

/// Starts a program in its own process group. Its stdin is /dev/null, no signal is blocked, and other
/// descriptors are closed. Signal dispositions are the defaults, but SIGINT and SIGHUP stay ignored if this
/// process ignores them. `guard` watches the group, and the kernel kills the process when this process ends
/// for any reason.
Started start_process(const std::string& path, const std::vector<std::string>& command,
                      const Variables& environment, int out, int err, const Guard& guard);

/// Sends a signal to a process group. Does nothing if the group no longer exists.
void signal_group(int pid, int signal);

}  // namespace tapestry::distributed::launch
