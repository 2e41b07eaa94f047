#pragma once
// Starting one rank. Not in tapestry.h: for the launcher and its tests.
#include <string>
#include <vector>

#include "tapestry/distributed/launch/guard.h"
#include "tapestry/distributed/launch/options.h"

namespace tapestry::distributed::launch {

/// Finds `program` as a shell would: as it is if it has a '/', else in the folders of $PATH. Throws IoError
/// that says why there is none to run.
std::string find_program(const std::string& program);

struct Started {
  int pid = -1;   ///< also its process group; -1 if it could not be started
  int error = 0;  ///< errno of what failed
};

/// Starts it in a process group of its own, with stdin from /dev/null, default signal dispositions and none
/// blocked, no other descriptors of ours, watched by `guard`, and killed by the kernel when this process
/// ends, however that comes.
Started start_process(const std::string& path, const std::vector<std::string>& command,
                      const Variables& environment, int out, int err, const Guard& guard);

/// Sends a signal to a process group; one that has gone is passed over.
void signal_group(int pid, int signal);

}  // namespace tapestry::distributed::launch
