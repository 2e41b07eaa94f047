#include "tapestry/distributed/launch/internal/failure.h"

#include <cerrno>
#include <csignal>
#include <cstring>

#include "tapestry/core/error.h"
#include "tapestry/core/internal/limits.h"
#include "tapestry/distributed/comm/internal/descriptor.h"

namespace tapestry::distributed::launch {
namespace {

std::string reason(const Failure& f) {
  if (f.start_error == ENOEXEC)
    return "it cannot be executed: it is neither an executable for this machine nor a script that begins "
           "with #!";
  if (f.start_error == EAGAIN || f.start_error == ENOMEM)
    return concat({"it could not be started: ", std::strerror(f.start_error), detail::process_limits(),
                   detail::memory_limits(), "; raise the limit, or start fewer ranks on this node"});
  if (f.start_error == EMFILE || f.start_error == ENFILE)
    return concat({"it could not be started: ", std::strerror(f.start_error),
                   "; raise the limit of open files (ulimit -n)"});
  if (f.start_error != 0) return concat({"it could not be started: ", std::strerror(f.start_error)});
  if (f.signal == 0) return concat({"it ended with exit code ", f.exit_code});
  std::string text = "killed by " + signal_name(f.signal);
  if (f.signal == SIGKILL && f.oom_kills > 0)
    return text + concat({" by the kernel, out of memory (", f.oom_kills,
                          " such kill(s) in this control group)", detail::memory_limits(),
                          ": give it more memory, or use less (batch size, workers, ranks on this node)"});
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
  const std::string process = f.pid > 0 ? concat({" (pid ", f.pid, ")"}) : "";
  std::string text = concat({"rank ", f.rank, process, " failed first: ", reason(f)});
  if (f.ended_before.empty() || f.exit_code == 0) return text;
  const std::string others = rank_list(f.ended_before);
  return text + concat({"; ", others,
                        " had ended before with exit code 0: if that was too early, look at the output of ",
                        others});
}

}  // namespace tapestry::distributed::launch
