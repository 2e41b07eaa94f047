#include "tapestry/distributed/launch/internal/failure.h"

#include <cerrno>
#include <csignal>
#include <cstring>

#include "tapestry/core/error.h"

namespace tapestry::distributed::launch {
namespace {

std::string reason(const Failure& f) {
  if (f.start_error == ENOEXEC)
    return "it cannot be executed: it is neither an executable for this machine nor a script that begins "
           "with #!";
  if (f.start_error != 0) return concat({"it could not be started: ", std::strerror(f.start_error)});
  if (f.signal == 0) return concat({"it ended with exit code ", f.exit_code});
  std::string text = "killed by " + signal_name(f.signal);
  if (f.signal == SIGKILL && f.oom_kills > 0)
    return text +
           concat({" by the kernel, out of memory (", f.oom_kills,
                   " such kill(s) in this control group): give it more memory, or use less (batch size, "
                   "workers, ranks on this node)"});
  if (f.signal == SIGKILL)
    return text +
           ", not by tapestry-run: either kill -9, or the kernel's out-of-memory killer (dmesg shows "
           "which)";
  if (f.signal == SIGBUS)
    text += ": often a full /dev/shm (docker run --shm-size=1g), see tapestry-run --doctor";
  return text;
}

}  // namespace

int Failure::status() const {
  if (start_error != 0) return start_error == ENOENT ? 127 : 126;
  return signal != 0 ? 128 + signal : exit_code;
}

std::string signal_name(int signal) {
  const char* const name = sigabbrev_np(signal);
  const char* const text = sigdescr_np(signal);
  if (!name || !text) return concat({"signal ", signal});
  return concat({"SIG", name, " (", text, ")"});
}

std::string describe(const Failure& f) {
  if (f.pid <= 0) return concat({"rank ", f.rank, " failed first: ", reason(f)});
  return concat({"rank ", f.rank, " (pid ", f.pid, ") failed first: ", reason(f)});
}

}  // namespace tapestry::distributed::launch
