#include "tapestry/distributed/comm/internal/launcher_watch.h"

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>

#include "tapestry/core/internal/limits.h"
#include "tapestry/distributed/comm/environment.h"
#include "tapestry/distributed/comm/error.h"
#include "tapestry/distributed/comm/internal/block_signals.h"

namespace tapestry::distributed {
namespace {

constexpr std::chrono::milliseconds kInterval{500};
constexpr std::chrono::milliseconds kExitGrace{30'000};  // for a program that saves its state at SIGTERM
constexpr int kMostWrappers = 64;

// Taken when the library is loaded. If the parent ended before init_process_group(), only this tells.
const pid_t loaded_in = ::getpid(), parent_at_load = ::getppid();

std::string content(pid_t process, const char* file) {
  std::ifstream in(concat({"/proc/", process, "/", file}), std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

/// The parent of a process, or 0 if the process has ended.
pid_t parent_of(pid_t process) {
  if (process == ::getpid()) return ::getppid();
  const std::string stat = content(process, "stat");  // "4711 (name) S 4242 ..."; the name may hold anything
  const auto name_end = stat.rfind(')');
  std::istringstream fields(name_end == std::string::npos ? "" : stat.substr(name_end + 1));
  char state = 0;
  pid_t parent = 0;
  fields >> state >> parent;
  return parent;
}

bool has_variable(pid_t process, const std::string& name) {
  return ('\0' + content(process, "environ")).find('\0' + name + '=') != std::string::npos;
}

/// The launcher, and its child that is this process or has started it.
struct Link {
  pid_t launcher = 0, child = 0;
  bool holds() const { return parent_of(child) == launcher; }
};

Link find_launcher(const std::string& variable) {
  Link link{::getppid(), ::getpid()};
  for (int i = 0; i < kMostWrappers && link.launcher > 1 && has_variable(link.launcher, variable); ++i)
    link = {parent_of(link.launcher), link.launcher};
  return link;
}

[[noreturn]] void end_process(const std::string& launcher, pid_t process, std::chrono::milliseconds grace) {
  const std::string text = concat({"tapestry: the launcher of this rank (", launcher, ", process ", process,
                                   ") has ended, so the rank ends too (SIGTERM, then SIGKILL); "
                                   "TAPESTRY_END_WITH_LAUNCHER=0 keeps ranks running\n"});
  static_cast<void>(!::write(STDERR_FILENO, text.data(), text.size()));
  ::kill(::getpid(), SIGTERM);
  std::this_thread::sleep_for(grace);
  ::kill(::getpid(), SIGKILL);
  for (;;) ::pause();
}

}  // namespace

void end_with_launcher(const std::string& launcher, const std::string& variable) {
  static std::atomic<pid_t> watched_in{0};
  if (watched_in.exchange(::getpid()) == ::getpid()) return;
  const bool orphaned = ::getpid() == loaded_in && ::getppid() != parent_at_load;
  check<DistributedError>(!orphaned, "[init_process_group] the launcher of this rank (", launcher,
                          ", process ", parent_at_load,
                          ") has ended; start the job again (TAPESTRY_END_WITH_LAUNCHER=0 skips this check)");
  const Link link = find_launcher(variable);
  if (link.launcher <= 0)
    return;  // a wrapper ended meanwhile; the launcher takes that for the end of the rank
  const std::chrono::milliseconds grace = std::min<std::chrono::milliseconds>(kExitGrace, default_timeout());
  const BlockSignals in_its_thread;
  detail::start_thread("init_process_group", [=] {
    while (link.holds()) std::this_thread::sleep_for(kInterval);
    // If the launcher's child was a wrapper that has exited, the launcher takes that for the end of the rank.
    // The launcher may still be running, so this process is not ended then.
    if (link.child == ::getpid() || parent_of(link.child) != 0) end_process(launcher, link.launcher, grace);
  }).detach();
}

}  // namespace tapestry::distributed
