#pragma once
// Two hosts: network namespaces with an address each and one wire between them. They are those of processes
// of the test and vanish with them.
#include <string>
#include <vector>

#include "tests/launch/job.h"

namespace tests {

/// Runs `script` (sh) on host A, 192.168.213.1, as root there. In it, `$on_b command` runs one on host
/// B, 192.168.213.2; $b is the process that keeps B; `run 0` and `run 1 $on_b` run tapestry-run there with
/// $OPTIONS and kTrainingRank, one rank a host, and leave its output in $DIR/out.<node> and its status in
/// $DIR/status.<node>; `rank 0` and `rank 1 $on_b` run the rank by itself, told by variables who it is.
Job hosts(const std::string& script, std::vector<std::string> variables = {});

/// False, with a message, without Gloo or iproute2, or where namespaces are not permitted.
bool has_hosts();

}  // namespace tests
