#include "tapestry/distributed/comm/internal/diagnosis.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstdlib>
#include <iostream>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <utility>

#ifdef __linux__
#include <pthread.h>
#endif

#include "tapestry/core/error.h"
#include "tapestry/core/internal/fork.h"
#include "tapestry/core/internal/limits.h"
#include "tapestry/distributed/comm/internal/descriptor.h"

namespace tapestry::distributed {
namespace {

using namespace std::chrono_literals;

constexpr Milliseconds kGather = 3s;  // the longest time to collect the reports of all ranks
// The longest time for a whole diagnosis, including the store's own timeouts.
constexpr Milliseconds kVerdict = 5s;
// How long a rank that lost a connection waits for the report of the rank that closed it.
constexpr Milliseconds kRootCause = 200ms;
constexpr std::size_t kOrderShown = 32;  // how many of its last calls a rank stores
constexpr Milliseconds kLeave = 2s;      // the longest time to store the last report of a rank that leaves
constexpr Milliseconds kStoreIsSilent = 5s;  // the time between requests while the store does not answer

// Splits a text into N fields at line breaks. The last field holds the rest of the text.
template <std::size_t N>
std::array<std::string, N> fields(std::string_view text) {
  std::array<std::string, N> out;
  for (std::size_t i = 0; i < N; ++i) {
    const std::size_t end = i + 1 < N ? text.find('\n') : std::string_view::npos;
    out[i] = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
  }
  return out;
}

// Where a rank is, as it reports itself.
struct Report {
  enum class Kind : char { waits = 'w', idle = 'i', left = 'l', silent = 's' } kind = Kind::silent;
  std::string call;    // brief() of the call that it waits in, or of its last call
  std::string site;    // the source line of that call
  std::string detail;  // the rank's row of the table

  std::string str() const {
    return concat({std::string(1, static_cast<char>(kind)), "\n", call, "\n", site, "\n", detail});
  }
  static Report parse(std::string_view text) {
    auto [kind, call, site, detail] = fields<4>(text.substr(0, 4096));
    const char k = kind.empty() ? 's' : kind[0];
    return {k == 'w'   ? Kind::waits
            : k == 'i' ? Kind::idle
            : k == 'l' ? Kind::left
                       : Kind::silent,
            std::move(call), std::move(site), std::move(detail)};
  }
};

/// `leaves` is null, or says how the rank leaves. `call` is the brief() of the call that failed.
Report report_of(const Recorder& recorder, const char* leaves, const std::string& call = {}) {
  const auto now = Clock::now();
  Report report;
  auto running = recorder.running();
  // The call that failed comes first. Collectives tell more than messages that were posted early.
  std::stable_partition(running.begin(), running.end(),
                        [](const auto& r) { return r.op != Op::send && r.op != Op::recv; });
  std::stable_partition(running.begin(), running.end(), [&](const auto& r) { return r.brief() == call; });
  const auto last = recorder.last();
  if (!running.empty() && !leaves) {
    report.kind = Report::Kind::waits;
    for (const CollectiveRecord& r : running)
      report.detail +=
          concat({report.detail.empty() ? "waits " : "; and ", seconds(now - r.started), " in ", r.str()});
    report.call = running[0].brief();
    report.site = running[0].site;
    return report;
  }
  report.kind = leaves ? Report::Kind::left : Report::Kind::idle;
  report.detail = leaves ? leaves : "runs its own code";
  if (!last) {
    report.detail += "; it has called nothing";
    return report;
  }
  report.detail += concat({"; its last call was ", last->str(), last->failed ? ", failed " : ", done ",
                           seconds(now - last->finished), leaves ? " earlier" : " ago"});
  report.call = last->brief();
  report.site = last->site;
  return report;
}

// One line that says where all ranks are. Ranks that did not come are listed first.
std::string summary(const std::vector<Report>& reports, const std::string& call) {
  // The key says where ranks are, and the value lists these ranks. The first character of the key is a digit,
  // which determines the order in the line and is not printed.
  std::map<std::string, std::vector<int>> parties;
  for (std::size_t r = 0; r < reports.size(); ++r) {
    const Report& report = reports[r];
    const std::string at = report.call + (report.site.empty() ? "" : " " + report.site);
    std::string words;
    switch (report.kind) {
      case Report::Kind::waits:
        words = report.call == call ? "4in " + call : "1at " + at;
        break;
      case Report::Kind::idle:
        words = report.call.empty() ? "2in no call" : "2in no call, the last was " + at;
        break;
      case Report::Kind::left:
        words = report.call.empty() ? "3gone without a call" : "3gone, the last call was " + at;
        break;
      case Report::Kind::silent:
        words = "0silent (frozen, dead or cut off)";
        break;
    }
    parties[words].push_back(static_cast<int>(r));
  }
  std::string line;
  for (const auto& [words, ranks] : parties) {
    line += (line.empty() ? "" : "; ") + rank_list(ranks);
    const bool one = ranks.size() == 1;
    line += (words[0] == '4' ? (one ? " waits " : " wait ") : (one ? " is " : " are ")) + words.substr(1);
  }
  return line;
}

}  // namespace

void Failure::raise() const {
  if (timeout) throw TimeoutError(text);
  throw DistributedError(text);
}

struct Diagnosis::State {
  const std::shared_ptr<Store> store;
  const int rank, size;
  const GroupOptions options;
  const std::shared_ptr<const Recorder> recorder;
  const std::shared_ptr<const PostOrder> posts;

  mutable std::mutex mutex;
  std::condition_variable changed;
  std::optional<Cause> pending;
  std::shared_ptr<const Failure> failure;
  const char* leaves = nullptr;  // how this rank leaves, once it does
  bool ended = false;
  std::vector<std::weak_ptr<Backend>> backends;

  // Used by the watchdog thread only.
  Clock::time_point poll_at{};
  Clock::time_point warned_of{};

  static constexpr const char* kRequest = "diagnosis/request";
  static std::string rank_key(int r) { return "diagnosis/rank/" + std::to_string(r); }
  static std::string order_key(int r) { return "diagnosis/order/" + std::to_string(r); }

  void decide(bool timeout, std::string text) {
    const std::lock_guard lock(mutex);
    if (!failure) failure = std::make_shared<Failure>(Failure{timeout, std::move(text)});
    changed.notify_all();
  }

  void abort_backends(const std::string& why) {
    std::vector<std::shared_ptr<Backend>> all;
    {
      const std::lock_guard lock(mutex);
      for (const auto& weak : backends)
        if (auto backend = weak.lock()) all.push_back(std::move(backend));
    }
    for (const auto& backend : all) backend->abort(why);
  }

  std::string own_text(const Cause& cause, const std::string& why) const {
    if (cause.complete) return cause.text;
    return concat({cause.text, "\n", why, "; this rank knows only its own state:\n  rank ", rank, "  ",
                   report_of(*recorder, nullptr).detail});
  }

  // Collects the reports of all ranks. A rank whose report does not come in time keeps the kind `silent`.
  std::vector<Report> gather() {
    std::vector<Report> reports(static_cast<std::size_t>(size));
    const Deadline deadline = Clock::now() + kGather;
    std::vector<int> open;
    for (int r = 0; r < size; ++r) open.push_back(r);
    for (Milliseconds pause = 20ms;; pause = std::min<Milliseconds>(2 * pause, 500ms)) {
      std::erase_if(open, [&](int r) {
        if (Clock::now() >= deadline) return false;
        const auto text = store->try_get(rank_key(r));
        if (text) reports[static_cast<std::size_t>(r)] = Report::parse(*text);
        return text.has_value();
      });
      if (open.empty() || Clock::now() >= deadline) return reports;
      std::this_thread::sleep_for(std::min<Clock::duration>(pause, deadline - Clock::now()));
    }
  }

  // Names the calls that two ranks made in different orders, which may be why they wait for each other. Empty
  // if there are none among the last calls of the ranks that reported.
  std::string find_inversion(const std::vector<Report>& reports) {
    std::vector<int> ranks;
    std::vector<std::string> logs;
    for (int r = 0; r < size; ++r) {
      const auto kind = reports[static_cast<std::size_t>(r)].kind;
      if (kind != Report::Kind::waits && kind != Report::Kind::idle) continue;
      if (auto log = store->try_get(order_key(r))) {
        ranks.push_back(r);
        logs.push_back(std::move(*log));
      }
    }
    return distributed::find_inversion(ranks, logs);
  }

  std::string hint(const std::vector<Report>& reports, const Cause& cause) const {
    const bool silence = std::any_of(reports.begin(), reports.end(),
                                     [](const Report& r) { return r.kind == Report::Kind::silent; });
    if (silence) return "\nlook at the last output of the silent ranks, and at their machines";
    if (cause.call.empty()) return {};
    return concat(
        {"\ncall the same collectives in the same order on every rank (a branch on the rank, an exception "
         "that "
         "was caught, or unequal numbers of batches break it)",
         options.check.value_or(true) ? ""
                                      : "; TAPESTRY_CHECK_COLLECTIVES=1 finds the first call that differs"});
  }

  // Diagnoses a failure on this rank, or one that another rank has reported.
  void diagnose(const Cause& own) {
    Cause cause = own;
    try {
      if (size > 1) {
        std::vector<int> world(static_cast<std::size_t>(size));
        std::iota(world.begin(), world.end(), 0);
        store->set(order_key(rank), posts->log(world, kOrderShown));
        store->set(rank_key(rank), report_of(*recorder, nullptr, cause.call).str());
        const std::string mine =
            concat({std::string(1, cause.timeout ? 't' : 'e'), std::string(1, cause.complete ? 'c' : 'i'),
                    "\n", cause.call, "\n", cause.text});
        // A lost connection is usually the result of a failure that another rank is about to report.
        if (!cause.timeout && !cause.complete && !cause.call.empty())
          for (const Deadline until = Clock::now() + kRootCause;
               Clock::now() < until && !store->try_get(kRequest);)
            std::this_thread::sleep_for(20ms);
        const auto [kind, call, text] = fields<3>(store->compare_set(kRequest, std::nullopt, mine));
        // The first report is the cause. Later ones are consequences.
        if (!own.complete && kind.size() == 2 && !text.empty())
          cause = {kind[0] == 't', kind[1] == 'c', call, text};
      }
      if (cause.complete) decide(cause.timeout, cause.text);
      abort_backends(cause.text);
      if (cause.complete) return;
      if (size == 1) return decide(cause.timeout, cause.text);
      const auto reports = gather();
      std::string text = cause.text + "\n" + summary(reports, cause.call);
      for (std::size_t r = 0; r < reports.size(); ++r) {
        const Report& report = reports[r];
        text += concat(
            {"\n  rank ", r, "  ",
             report.kind == Report::Kind::silent ? "no report within " + seconds(kGather) : report.detail});
      }
      const std::string inversion = cause.timeout ? find_inversion(reports) : "";
      decide(cause.timeout, text + (inversion.empty() ? hint(reports, cause) : "\n" + inversion));
    } catch (const std::exception& e) {
      decide(
          cause.timeout,
          own_text(cause, concat({"the store at ", store->str(), " could not be reached (", e.what(), ")"})));
      abort_backends(cause.text);
    }
  }

  std::optional<Cause> request_of_another() {
    if (size == 1 || Clock::now() < poll_at) return {};
    try {
      const auto request = store->try_get(kRequest);
      if (!request) return {};
      auto [kind, call, text] = fields<3>(*request);
      return Cause{kind.starts_with('t'), kind.ends_with('c'), std::move(call), std::move(text)};
    } catch (const std::exception&) {
      // A store that does not answer is not a failure of this rank, so only the next request is postponed.
      poll_at = Clock::now() + kStoreIsSilent;
      return {};
    }
  }

  void warn_of_slow() {
    const auto now = Clock::now();
    const Clock::time_point warned_before = warned_of;  // of all calls that had started by then
    for (const CollectiveRecord& r : recorder->running()) {
      if (now - r.started < options.warn_after || r.started <= warned_before) continue;
      warned_of = std::max(warned_of, r.started);
      std::cerr << concat({"tapestry: rank ", rank, " has waited ", seconds(now - r.started), " in ", r.str(),
                           "; it will be an error after ", seconds(options.timeout), "\n"})
                << std::flush;
    }
  }

  void loop() {
    const Milliseconds tick =
        std::clamp<Milliseconds>(std::min(options.warn_after, options.timeout / 10), 10ms, 500ms);
    std::unique_lock lock(mutex);
    while (!failure) {
      changed.wait_for(lock, tick, [this] { return pending || leaves || failure; });
      if (pending) {
        const Cause cause = *pending;
        lock.unlock();
        diagnose(cause);
      } else if (leaves) {
        lock.unlock();
        report_leaving();
        lock.lock();
        break;
      } else {
        lock.unlock();
        warn_of_slow();
        if (const auto cause = request_of_another()) diagnose(*cause);
      }
      lock.lock();
    }
    ended = true;
    changed.notify_all();
  }

  void report_leaving() {
    if (size == 1) return;
    try {
      store->set(rank_key(rank), report_of(*recorder, leaves).str());
    } catch (const std::exception&) {  // the store is gone, so nobody can read the report
    }
  }
};

namespace {

// A program that calls exit() while it has groups ends normally for its launcher, and the other ranks would
// see only closed connections. So exit() makes the watchdogs report it first.
struct LiveState {
  std::weak_ptr<Diagnosis::State> state;
  ForkMark owner;  // a child process of fork() has no watchdog for this state
};
struct LiveStates {
  std::mutex& mutex = lock_during_fork(*new std::mutex);
  std::vector<LiveState> all;
};
LiveStates& live_states() {
  static LiveStates& live = *new LiveStates;
  return live;
}

/// Locks `mutex` unless the deadline passes first. A std::timed_mutex would do the same, but ThreadSanitizer
/// of GCC 12 does not know pthread_mutex_clocklock(), which it calls.
std::unique_lock<std::mutex> lock_until(std::mutex& mutex, Deadline deadline) {
  std::unique_lock lock(mutex, std::try_to_lock);
  for (; !lock.owns_lock() && Clock::now() < deadline; lock.try_lock()) std::this_thread::sleep_for(1ms);
  return lock;
}

void report_exit() {
  LiveStates& live = live_states();
  const Deadline deadline = Clock::now() + kLeave;
  // exit() may have been called by a signal handler that interrupted the owner of a mutex.
  const std::unique_lock lock = lock_until(live.mutex, deadline);
  if (!lock.owns_lock()) return;
  for (const LiveState& entry : live.all) {
    const auto state = entry.owner.is_in_child() ? nullptr : entry.state.lock();
    if (!state) continue;
    std::unique_lock own = lock_until(state->mutex, deadline);
    if (!own.owns_lock()) return;
    if (!state->leaves) state->leaves = "has called exit() in the middle of the job";
    state->changed.notify_all();
    state->changed.wait_until(own, deadline, [&] { return state->ended; });
  }
}

void remember(const std::shared_ptr<Diagnosis::State>& state) {
  LiveStates& live = live_states();
  static const bool registered = std::atexit(report_exit) == 0;
  static_cast<void>(registered);
  const std::lock_guard lock(live.mutex);
  std::erase_if(live.all, [](const LiveState& entry) { return entry.state.expired(); });
  live.all.push_back({state, {}});
}

}  // namespace

Diagnosis::Diagnosis(std::shared_ptr<Store> store, int rank, int size, const GroupOptions& options,
                     std::shared_ptr<const Recorder> recorder, std::shared_ptr<const PostOrder> posts)
    : state_(new State{std::move(store), rank, size, options, std::move(recorder), std::move(posts)}) {
  remember(state_);
  thread_ = detail::start_thread("process_group", [state = state_] {
#ifdef __linux__
    pthread_setname_np(pthread_self(), "watchdog");
#endif
    state->loop();
  });
}

Diagnosis::~Diagnosis() { leave(); }

void Diagnosis::watch(const std::shared_ptr<Backend>& backend) {
  const std::lock_guard lock(state_->mutex);
  std::erase_if(state_->backends, [](const auto& weak) { return weak.expired(); });
  state_->backends.push_back(backend);
}

std::shared_ptr<const Failure> Diagnosis::failure() const {
  const std::lock_guard lock(state_->mutex);
  return state_->failure;
}

std::shared_ptr<const Failure> Diagnosis::fail(const Cause& cause) {
  std::unique_lock lock(state_->mutex);
  if (!state_->failure && !state_->pending) state_->pending = cause;
  state_->changed.notify_all();
  state_->changed.wait_for(lock, kVerdict, [this] { return state_->failure || state_->ended; });
  if (state_->failure) return state_->failure;
  lock.unlock();
  state_->decide(cause.timeout,
                 state_->own_text(cause, concat({"the store at ", state_->store->str(),
                                                 " did not answer within ", seconds(kVerdict)})));
  state_->abort_backends(cause.text);
  return failure();
}

void Diagnosis::leave() {
  if (!thread_.joinable()) return;
  std::unique_lock lock(state_->mutex);
  state_->leaves = "has left (its group was destroyed)";
  state_->changed.notify_all();
  const bool ended = state_->changed.wait_for(lock, kLeave, [this] { return state_->ended; });
  lock.unlock();
  if (ended) thread_.join();
  else thread_.detach();
}

}  // namespace tapestry::distributed
