#include "tapestry/distributed/launch/internal/launch.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <optional>

#include "tapestry/core/error.h"
#include "tapestry/distributed/comm/environment.h"
#include "tapestry/distributed/comm/internal/held_key.h"
#include "tapestry/distributed/comm/internal/machine.h"
#include "tapestry/distributed/comm/store.h"
#include "tapestry/distributed/launch/internal/child_environment.h"
#include "tapestry/distributed/launch/internal/guard.h"
#include "tapestry/distributed/launch/internal/job_store.h"
#include "tapestry/distributed/launch/internal/nodes.h"
#include "tapestry/distributed/launch/internal/process.h"
#include "tapestry/distributed/launch/internal/supervise.h"

namespace tapestry::distributed::launch {
namespace {

constexpr std::string_view kSelf = "[tapestry-run] ";
/// Time for other nodes to learn of the end. They ask twice per second, so a node that has not asked by then
/// is dead, frozen or disconnected.
constexpr std::chrono::seconds kHear{4};
/// Time for the other nodes to report that they no longer need the store, after the grace period.
constexpr std::chrono::seconds kLeave{10};
/// The limit of one request to node 0's launcher. If that launcher is frozen, a signal waits at most this
/// long.
constexpr std::chrono::seconds kRequest{5};
/// Time for a launcher to be forgotten whose host vanished: its store connection ends after 11 s of silence.
constexpr std::chrono::seconds kReplace{15};
/// Waits that are longer are announced.
constexpr std::chrono::seconds kAnnounce{3};

/// Opens closed standard descriptors on /dev/null. Otherwise the next opened file would become stdout.
void open_standard_streams() {
  for (int fd = open("/dev/null", O_RDWR); fd >= 0; fd = open("/dev/null", O_RDWR)) {
    if (fd <= STDERR_FILENO) continue;
    close(fd);
    return;
  }
}

Job job_of(const LaunchOptions& o, const Variables& environment) {
  return {.nnodes = o.nnodes,
          .node_rank = o.node_rank,
          .nproc_per_node = o.nproc_per_node,
          .master_addr = o.host,
          .master_port = o.port,
          .secret = secret_of(o, environment),
          .cores = available_cores(),
          .max_restarts = o.max_restarts};
}

void create_log_folder(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  check<IoError>(!error, "[tapestry-run] cannot create ", folder, ": ", error.message(),
                 "; choose another --log-dir");
}

std::string log_path(const std::string& folder, int rank, int attempt) {
  if (folder.empty()) return "";
  const std::string restart = attempt > 0 ? concat({".restart", attempt}) : "";
  return concat({folder, "/rank_", rank, restart, ".log"});
}

class Launcher {
 public:
  Launcher(const LaunchOptions& options, std::string path)
      : o_(options),
        path_(std::move(path)),
        environment_(this_environment()),
        job_(job_of(options, environment_)) {
    child_environment(environment_, job_, 0, 0);  // throws before anything is started
    if (!o_.log_dir.empty()) create_log_folder(o_.log_dir);
  }

  int run() {
    if (o_.node_rank == 0) {
      store_ = open_store(o_, job_.secret);
      job_.master_port = store_->port();
    }
    int attempt = 0;
    while (enter(attempt) && run_attempt(attempt)) ++attempt;
    if (nodes_) leave();
    flush();
    return status_;
  }

 private:
  /// Returns true if another attempt follows.
  bool run_attempt(int attempt) {
    const bool restarts_left = attempt < o_.max_restarts;
    AttemptPlan plan = attempt_plan(attempt);
    std::optional<Ending> ending;
    if (nodes_) {
      plan.ended_elsewhere = [&] { return (ending = nodes_->look(attempt)).has_value(); };
      plan.on_end = [&](const Outcome& so_far) { ending = nodes_->end(attempt, ending_of(so_far)); };
    }
    const Outcome outcome = supervise(plan, signals_, guard_, terminal_);
    if (outcome.stopped_by != 0) stopped_by_ = outcome.stopped_by;
    const bool well = !outcome.failure && outcome.stopped_by == 0 && !outcome.elsewhere;
    if (nodes_ && well) ending = wait_for_nodes(attempt);
    else if (!nodes_ && !well) ending = ending_of(outcome);
    if (!ending) {
      status_ = stopped_by_ != 0 ? 128 + stopped_by_ : 0;
      return false;
    }
    const bool again = ending->restart && restarts_left && stopped_by_ == 0;
    if (ending->lost) nodes_.reset();
    if (outcome.failure) show_last_lines(*outcome.failure);
    say(ending->text + (again ? announced(*ending, attempt) : ""));
    status_ = ending->status;
    return again;
  }

  std::string announced(const Ending& ending, int attempt) const {
    if (ending.lost) return concat({"; this node waits up to ", seconds(), " s for it to return"});
    return concat({"; restart ", attempt + 1, " of ", o_.max_restarts});
  }

  /// Waits until the launchers of all nodes are ready for an attempt. If the attempt has ended without this
  /// launcher, `attempt` becomes the next one. Returns false, with status_ set, if the job ends instead.
  bool enter(int& attempt) {
    if (o_.nnodes == 1) return true;
    const auto start = Clock::now();
    // Node 0 decides, and the other nodes wait long enough to hear of it.
    const auto deadline = start + timeout_ + (o_.node_rank == 0 ? Milliseconds(0) : grace() + kLeave);
    for (bool told = false;;) {
      if (!nodes_) {
        if (!join()) return status_ = 128 + stopped_by_, false;
        attempt = 0;
      }
      std::optional<Ending> ending = nodes_->look(attempt);
      try {
        if (!ending && nodes_->begin(attempt)) return true;
      } catch (const DistributedError& e) {
        ending = Nodes::gone(e);
      }
      const bool late = Clock::now() >= deadline;
      if (!ending && late) ending = nodes_->end(attempt, {1, false, too_late()});
      if (!ending && stopped_by_ != 0) ending = nodes_->end(attempt, ending_of({.stopped_by = stopped_by_}));
      if (ending && ending->lost && !late) {
        nodes_.reset();
      } else if (ending && ending->restart && attempt < o_.max_restarts && !late) {
        ++attempt;
        continue;
      } else if (ending) {
        say(ending->text);
        status_ = stopped_by_ != 0 ? 128 + stopped_by_ : ending->status;
        return false;
      }
      if (nodes_ && o_.node_rank == 0 && !told && Clock::now() >= start + kAnnounce) {
        say(concat({"waits up to ", seconds(), " s for the launchers of ", nodes_->missing()}));
        told = true;
      }
      pause();
    }
  }

  std::string too_late() const {
    if (o_.node_rank != 0) return concat({"node 0 has not begun within ", seconds(), " s"});
    return concat({"the launchers of ", nodes_->missing(), " have not come within ", seconds(),
                   " s; start them with the same options (TAPESTRY_TIMEOUT_S sets this time)"});
  }

  double seconds() const { return static_cast<double>(timeout_.count()) / 1000; }

  AttemptPlan attempt_plan(int attempt) const {
    AttemptPlan plan{.path = path_, .command = o_.command, .grace = grace()};
    for (int local = 0; local < job_.nproc_per_node; ++local) {
      const int rank = job_.rank(local);
      plan.ranks.push_back({rank, child_environment(environment_, job_, local, attempt),
                            log_path(o_.log_dir, rank, attempt), o_.log_dir.empty() || rank == 0});
    }
    return plan;
  }

  Milliseconds grace() const { return Milliseconds(static_cast<std::int64_t>(o_.grace_s * 1000)); }

  Ending ending_of(const Outcome& outcome) const {
    const std::string where = o_.nnodes > 1 ? concat({"node ", o_.node_rank, ": "}) : "";
    if (outcome.failure) return {outcome.failure->status(), true, where + describe(*outcome.failure)};
    return {128 + outcome.stopped_by, false, where + "ended by " + signal_name(outcome.stopped_by)};
  }

  void say(std::string_view text) { terminal_.line(true, kSelf, text); }

  void show_last_lines(const Failure& failure) {
    if (failure.last_lines.empty()) return;
    say(concat({"the last lines of rank ", failure.rank, ":"}));
    const std::string prefix = concat({"  ", failure.rank, " | "});
    for (const std::string& line : failure.last_lines) terminal_.line(true, prefix, line);
  }

  /// Writes output and sleeps briefly. Returns false after a signal that ends the job.
  bool pause() {
    pollfd fds[] = {{signals_.fd(), POLLIN, 0}, {terminal_.pending(), POLLOUT, 0}};
    poll(fds, 2, 200);
    if (fds[1].revents) terminal_.write_some();
    while (const auto signal = signals_.read()) {
      if (signal->number != SIGCHLD) stopped_by_ = signal->number;
    }
    return stopped_by_ == 0;
  }

  /// Connects to node 0's launcher, and registers this one. Returns false if a signal arrived first.
  bool join() {
    const auto deadline = Clock::now() + timeout_;  // a cluster may start its nodes minutes apart
    std::optional<Clock::time_point> taken;         // since when another launcher is known to be registered
    const TcpOptions options{
        .secret = job_.secret, .connect_timeout = std::chrono::seconds(1), .request_timeout = kRequest};
    const auto hold = [&](const std::string& key, const std::string& value) {
      return hold_key(o_.host, job_.master_port, key, value, options);
    };
    do {
      std::shared_ptr<Store> store;
      try {
        store = tcp_store(o_.host, job_.master_port, options);
        nodes_.emplace(store, o_, hold);
        if (nodes_->join()) return true;
        if (!taken) taken = Clock::now();
        check(Clock::now() < *taken + kReplace, "[tapestry-run] a launcher of node ", o_.node_rank,
              " exists already; give each node a different --node-rank from 0 to ", o_.nnodes - 1);
      } catch (const DistributedError& e) {
        const bool unreachable = store || dynamic_cast<const TimeoutError*>(&e);
        if (!unreachable) throw;  // another secret
        check<TimeoutError>(Clock::now() < deadline, "[tapestry-run] node ", o_.node_rank,
                            " cannot reach the launcher of node 0: ", e.what());
      }
      nodes_.reset();
    } while (pause());
    return false;
  }

  /// Called after this node's ranks have exited successfully. Returns null if the ranks of all nodes have.
  std::optional<Ending> wait_for_nodes(int attempt) try {
    nodes_->done(attempt);
    while (!nodes_->all_done(attempt)) {
      if (const auto ending = nodes_->look(attempt)) return ending;
      if (!pause()) return nodes_->end(attempt, ending_of({.stopped_by = stopped_by_}));
    }
    return std::nullopt;
  } catch (const DistributedError& e) {
    return Nodes::gone(e);
  }

  /// Keeps node 0's store alive until the other nodes no longer need it.
  void leave() try {
    nodes_->leave();
    const auto start = Clock::now(), deadline = start + grace() + kLeave;
    const auto all_left = [&] {
      const auto [know, left] = nodes_->count_left();
      return left >= o_.nnodes || (left >= know && Clock::now() >= start + kHear);
    };
    while (store_ && !all_left() && Clock::now() < deadline && pause()) {
    }
  } catch (const DistributedError&) {  // node 0's launcher is gone
  }

  /// Writes all queued output. Stops at a signal, or if nobody reads the output for TAPESTRY_TIMEOUT_S.
  void flush() {
    while (terminal_.pending() >= 0 && terminal_.idle() < timeout_) {
      pollfd fds[] = {{terminal_.pending(), POLLOUT, 0}, {signals_.fd(), POLLIN, 0}};
      poll(fds, 2, 500);
      if (fds[0].revents) terminal_.write_some();
      const auto signal = signals_.read();
      if (signal && signal->number != SIGCHLD) return;
    }
  }

  const LaunchOptions& o_;
  const std::string path_;
  const Variables environment_;
  const Milliseconds timeout_ = default_timeout();
  Job job_;
  // The guard is made before SIGCHLD is blocked. Otherwise the SIGCHLD of making it would stay pending, and
  // the kernel would merge the SIGCHLD of the first rank into it.
  const Guard guard_;
  const Signals signals_;  // declared before the store's thread, which inherits the blocked signals
  Terminal terminal_{STDOUT_FILENO, STDERR_FILENO};
  std::unique_ptr<StoreServer> store_;
  std::optional<Nodes> nodes_;
  int stopped_by_ = 0;
  int status_ = 0;
};

}  // namespace

int launch(const LaunchOptions& options) {
  open_standard_streams();
  std::string path;
  try {
    path = find_program(options.command.at(0));
  } catch (const IoError& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 127;  // as in a shell
  }
  return Launcher(options, std::move(path)).run();
}

}  // namespace tapestry::distributed::launch
