#include "tapestry/distributed/launch/internal/supervise.h"

#include <poll.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <memory>
#include <optional>

#include "tapestry/core/error.h"
#include "tapestry/distributed/comm/internal/machine.h"
#include "tapestry/distributed/launch/internal/process.h"

namespace tapestry::distributed::launch {
namespace {

using Clock = std::chrono::steady_clock;

/// The limit after SIGKILL. A process that is alive after it is stuck in the kernel (a driver, a dead network
/// disk).
constexpr std::chrono::seconds kUnkillable{10};
constexpr std::chrono::milliseconds kSameRequest{250};  // signals within this time are one request
/// The interval between queries about other nodes.
constexpr std::chrono::milliseconds kElsewhere{500};
constexpr int kLongestWait = 500;  // milliseconds

std::int64_t oom_kills() { return cgroup_counter("memory.events", "oom_kill").value_or(-1); }

struct Rank {
  Rank(const RankPlan& plan, Terminal& terminal)
      : number(plan.rank), output(plan.rank, plan.log_path, plan.show, terminal) {}
  int number;
  int pid = -1;
  bool alive = false;
  RankOutput output;
};

class Attempt {
 public:
  Attempt(const AttemptPlan& plan, const Signals& signals, const Guard& guard, Terminal& terminal)
      : plan_(plan), signals_(signals), guard_(guard), terminal_(terminal), oom_before_(oom_kills()) {
    // Open all logs first, so that an unwritable folder is found before any rank starts.
    for (const RankPlan& rank : plan.ranks) ranks_.push_back(std::make_unique<Rank>(rank, terminal));
  }

  Outcome run() {
    for (std::size_t i = 0; i < ranks_.size() && !stopping_; ++i)
      start(*ranks_[i], plan_.ranks[i].environment);
    while (any_alive()) {
      wait();
      const Clock::time_point now = Clock::now();
      if (!stopping_ && plan_.ended_elsewhere && now >= deadline_) look_elsewhere(now);
      else if (stopping_ && !killed_ && now >= deadline_) kill_all();
      else if (killed_ && now >= deadline_) give_up();
    }
    return outcome_;
  }

 private:
  void start(Rank& rank, const Variables& environment) {
    const Started started = start_process(plan_.path, plan_.command, environment, rank.output.out_for_child(),
                                          rank.output.err_for_child(), guard_);
    rank.output.close_child_ends();
    rank.pid = started.pid;
    rank.alive = started.pid > 0;
    if (!rank.alive) failed(rank, {.start_error = started.error});
  }

  bool any_alive() const {
    return std::any_of(ranks_.begin(), ranks_.end(), [](const auto& rank) { return rank->alive; });
  }

  /// Waits for the next event and handles it.
  void wait() {
    std::vector<pollfd> fds{{signals_.fd(), POLLIN, 0}, {terminal_.pending(), POLLOUT, 0}};
    const bool listen = !terminal_.waits();
    for (const auto& rank : ranks_) {
      for (int stream = 0; stream < RankOutput::kStreams; ++stream)
        fds.push_back({listen ? rank->output.fd(stream) : -1, POLLIN, 0});
    }
    if (poll(fds.data(), fds.size(), milliseconds_left()) == 0) look_for_ended();

    if (fds[1].revents) terminal_.write_some();
    for (std::size_t i = 2; i < fds.size(); ++i) {
      if (fds[i].revents)
        ranks_[(i - 2) / RankOutput::kStreams]->output.read_some(
            static_cast<int>((i - 2) % RankOutput::kStreams));
    }
    if (fds[0].revents) read_signals();
  }

  void read_signals() {
    while (const auto signal = signals_.read()) on_signal(*signal);
  }

  /// Checks all ranks. A SIGCHLD may have been delivered to another thread of the program.
  void look_for_ended() {
    if (std::none_of(ranks_.begin(), ranks_.end(), [](const auto& rank) { return end_of(*rank); })) return;
    // The signal may be pending by now, for example if this process was stopped when poll returned. It names
    // the first rank that exited.
    read_signals();
    collect_all();
  }

  int milliseconds_left() const {
    if (!stopping_ && !plan_.ended_elsewhere) return kLongestWait;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_ - Clock::now());
    return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, kLongestWait));
  }

  void on_signal(const Signal& signal) {
    if (signal.number == SIGCHLD) {
      // The kernel names the first child and merges later signals into that one. Among the merged ones, a
      // crash is reported before an exit, because the exit is more likely a consequence of the crash.
      for (const auto& rank : ranks_) {
        if (rank->pid == signal.pid) collect(*rank, false);
      }
      return collect_all();
    }
    // A closed terminal sends SIGHUP through the kernel and through its shell, and Slurm may signal both the
    // launcher and the job step. Such repeats are one request. A later signal asks for the end at once.
    const Clock::time_point now = Clock::now();
    if (requested_ && now - *requested_ < kSameRequest) return;
    requested_ = now;
    outcome_.stopped_by = signal.number;
    if (stopping_) return kill_all();
    if (plan_.on_end) plan_.on_end(outcome_);
    stop(signal.number);
  }

  void collect_all() {
    for (const bool crashed_only : {true, false}) {
      for (const auto& rank : ranks_) collect(*rank, crashed_only);
    }
  }

  /// Returns how a rank ended that has not been reaped yet.
  static std::optional<siginfo_t> end_of(const Rank& rank) {
    siginfo_t info{};
    if (!rank.alive || waitid(P_PID, rank.pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0)
      return std::nullopt;
    return info;
  }

  /// Records the exit of a rank if it has exited.
  void collect(Rank& rank, bool crashed_only) {
    const std::optional<siginfo_t> end = end_of(rank);
    if (!end) return;
    const bool crashed = end->si_code != CLD_EXITED;
    if (crashed_only && !crashed) return;
    // Kill processes that the rank left behind. Do it before reaping the rank, because its process ID may be
    // reused afterwards.
    signal_group(rank.pid, SIGKILL);
    guard_.forget(rank.pid);
    waitpid(rank.pid, nullptr, 0);
    rank.alive = false;
    rank.output.drain();
    if (stopping_) return;
    if (end->si_status == 0) return ended_well_.push_back(rank.number);
    Failure failure;
    (crashed ? failure.signal : failure.exit_code) = end->si_status;
    failed(rank, failure);
  }

  void failed(const Rank& rank, Failure failure) {
    failure.rank = rank.number;
    failure.pid = rank.pid;
    failure.last_lines = rank.output.tail().lines();
    failure.ended_before = ended_well_;
    if (const std::int64_t now = oom_kills(); oom_before_ >= 0 && now >= 0)
      failure.oom_kills = now - oom_before_;
    outcome_.failure = std::move(failure);
    if (plan_.on_end) plan_.on_end(outcome_);
    stop(SIGTERM);
  }

  void look_elsewhere(Clock::time_point now) {
    deadline_ = now + kElsewhere;
    outcome_.elsewhere = plan_.ended_elsewhere();
    if (outcome_.elsewhere) stop(SIGTERM);
  }

  void stop(int signal) {
    stopping_ = true;
    deadline_ = Clock::now() + plan_.grace;
    for_alive(signal);
    for_alive(SIGCONT);  // a stopped process would not receive the signal
  }

  void kill_all() {
    for_alive(SIGKILL);
    killed_ = true;
    deadline_ = Clock::now() + kUnkillable;
  }

  void give_up() {
    for (const auto& rank : ranks_) {
      if (!rank->alive) continue;
      terminal_.line(true, "[tapestry-run] ",
                     concat({"rank ", rank->number, " (pid ", rank->pid,
                             ") did not exit after SIGKILL: it is stuck "
                             "in the kernel, and the launcher gives up waiting"}));
      rank->alive = false;
    }
  }

  void for_alive(int signal) {
    for (const auto& rank : ranks_) {
      if (rank->alive) signal_group(rank->pid, signal);
    }
  }

  const AttemptPlan& plan_;
  const Signals& signals_;
  const Guard& guard_;
  Terminal& terminal_;
  const std::int64_t oom_before_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<int> ended_well_;  // ranks that ended with exit code 0
  std::optional<Clock::time_point> requested_;  // when a user's signal last asked for the end
  bool stopping_ = false, killed_ = false;
  Clock::time_point deadline_{};  // of the next query of other nodes, of the grace period, and of giving up
  Outcome outcome_;
};

}  // namespace

Outcome supervise(const AttemptPlan& plan, const Signals& signals, const Guard& guard, Terminal& terminal) {
  return Attempt(plan, signals, guard, terminal).run();
}

}  // namespace tapestry::distributed::launch
