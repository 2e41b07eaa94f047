#include "tapestry/distributed/launch/child_processes.h"

#include <unistd.h>

#include <filesystem>

#include "tapestry/core/error.h"
#include "tapestry/distributed/launch/internal/launch.h"
#include "tapestry/distributed/launch/internal/supervise.h"

namespace tapestry::distributed::launch {

using Clock = std::chrono::steady_clock;

namespace {

std::vector<std::string> this_program(const std::vector<std::string>& arguments) {
  std::vector<std::string> command = {std::filesystem::read_symlink("/proc/self/exe").string()};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

// Returns the environment of the child, without the variables that would make it a rank of the job to which
// this process may belong.
Variables environment_of(const Child& child) {
  Variables variables = this_environment();
  for (const char* name :
       {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
        "TAPESTRY_STORE_RUNNING", "TAPESTRY_RESTART", "TAPESTRY_MAX_RESTARTS", "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"})
    variables.erase(name);
  for (const auto& [name, value] : child.variables) variables[name] = value;
  return variables;
}

std::string short_reason(const Failure& f) {
  if (f.start_error != 0) return "the process could not be started";
  return f.signal != 0 ? "the process was killed by " + signal_name(f.signal)
                       : concat({"the process ended with exit code ", f.exit_code});
}

}  // namespace

struct ChildProcesses::Impl {
  const Signals signals;
  const Guard guard;
  Terminal terminal{STDOUT_FILENO, STDERR_FILENO};
};

ChildProcesses::ChildProcesses() : impl_(std::make_unique<Impl>()) {}
ChildProcesses::~ChildProcesses() = default;

std::string ChildProcesses::run(const Child& child) {
  AttemptPlan plan;
  plan.command = this_program(child.arguments);
  plan.path = plan.command[0];
  plan.ranks = {{.rank = 0, .environment = environment_of(child), .log_path = "", .show = false}};
  const Clock::time_point end = Clock::now() + child.limit;
  plan.ended_elsewhere = [&] { return Clock::now() >= end; };
  const Outcome outcome = supervise(plan, impl_->signals, impl_->guard, impl_->terminal);
  if (outcome.stopped_by != 0) throw Interrupted{outcome.stopped_by};
  if (outcome.elsewhere)
    return concat({"the process did not end within ", child.limit.count() / 1000.0,
                   " s and was killed; allow more time"});
  if (!outcome.failure) return {};
  std::string text = short_reason(*outcome.failure);
  for (const std::string& line : outcome.failure->last_lines) text += "\n  " + line;
  return text;
}

int launch_ranks(const std::vector<std::string>& arguments, int count) {
  LaunchOptions options;
  options.nproc_per_node = count;
  options.command = this_program(arguments);
  return launch(options);
}

}  // namespace tapestry::distributed::launch
