#pragma once
#include <string>

namespace tapestry::distributed {

/// Ends this process soon after its launcher has ended. mpirun and torchrun end their ranks only if they can:
/// a launcher that is killed by SIGKILL leaves its ranks running. (tapestry-run's ranks end without this.)
///
/// The first call starts a thread, which checks twice per second. If the launcher has ended, the process gets
/// SIGTERM, and SIGKILL if it still runs after 30 s or default_timeout(), whichever is less. `variable` is a
/// variable that `launcher` sets for its ranks: processes between the launcher and this one, such as a shell
/// script, have it too, and the launcher does not. Throws DistributedError if the launcher has ended already.
void end_with_launcher(const std::string& launcher, const std::string& variable);

}  // namespace tapestry::distributed
