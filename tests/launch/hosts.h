#pragma once
// Simulates two hosts by two network namespaces with one address each and a virtual wire between them. The
// namespaces disappear with the test's processes.
#include <string>
#include <vector>

#include "tests/launch/job.h"

namespace tests {

/// Runs the shell script `script` as root on host A (192.168.213.1). In the script, `$on_b command` runs a
/// command on host B (192.168.213.2), and $b is the process that keeps host B alive. `run 0` and `run 1
/// $on_b` run tapestry-run with $OPTIONS and kTrainingRank, one rank per host. They write the output to
/// $DIR/out.<node> and the status to $DIR/status.<node>. `rank 0` and `rank 1 $on_b` run a rank without
/// tapestry-run and pass its identity by variables.
Job hosts(const std::string& script, std::vector<std::string> variables = {});

/// Returns false and prints a message if Gloo or iproute2 is missing or namespaces are not permitted.
bool has_hosts();

}  // namespace tests
