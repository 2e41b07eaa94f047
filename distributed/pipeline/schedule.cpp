#include "tapestry/distributed/pipeline/schedule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <tuple>

#include "tapestry/core/error.h"

namespace tapestry::distributed {
namespace {

using Kind = Action::Kind;

void check_counts(const char* op, int stages, int micro_batches) {
  check(stages >= 1 && micro_batches >= 1, "[", op, "] ", stages, " stages and ", micro_batches,
        " micro-batches; at least one of each is required");
}

// The state of a simulation.
class Simulator {
 public:
  Simulator(const std::vector<std::vector<Action>>& actions, const SimulationOptions& options)
      : actions_(actions),
        costs_(options.costs),
        extra_(options.extra),
        transfer_(options.transfer),
        device_(options.devices) {
    const std::size_t stages = actions.size();
    if (costs_.empty()) costs_.resize(stages);
    if (device_.empty()) {
      device_.resize(stages);
      std::iota(device_.begin(), device_.end(), 0);
    }
    check(costs_.size() == stages && device_.size() == stages, "[simulate] ", stages,
          " stages, but costs of ", costs_.size(), " and devices of ", device_.size(),
          "; give one per stage, or none");
    for (std::size_t s = 0; s < (extra_.empty() ? 0 : stages); ++s)
      check(extra_.size() == stages && extra_[s].size() == actions[s].size(), "[simulate] extra times of ",
            extra_.size(), " stages for ", stages, " stages; give one for each action, or none");
    int devices = 0, micro_batches = 0;
    std::size_t all = 0;
    for (const auto& mine : actions) all += mine.size();
    for (std::size_t s = 0; s < stages; ++s) {
      check(device_[s] >= 0, "[simulate] stage ", s, " is on device ", device_[s], "; devices count from 0");
      check(costs_[s].forward >= 0 && costs_[s].backward >= 0 && costs_[s].weights >= 0 && transfer_ >= 0,
            "[simulate] a cost of stage ", s, " is negative: forward ", costs_[s].forward, ", backward ",
            costs_[s].backward, ", weights ", costs_[s].weights, ", transfer ", transfer_);
      devices = std::max(devices, device_[s] + 1);
      for (const Action& a : actions[s]) {
        check(a.micro_batch >= 0 && static_cast<std::size_t>(a.micro_batch) < all, "[simulate] stage ", s,
              " has ", a.str(), "; micro-batches count from 0 without gaps");
        micro_batches = std::max(micro_batches, a.micro_batch + 1);
      }
    }
    const std::vector<double> never(static_cast<std::size_t>(micro_batches), kNever);
    for (auto& ended : ended_) ended.assign(stages, never);
    next_.resize(stages);
    free_.resize(static_cast<std::size_t>(devices));
    result_.devices.resize(free_.size());
  }

  Simulation run() {
    while (const std::optional<TimedAction> next = first_possible()) commit(*next);
    for (std::size_t s = 0; s < actions_.size(); ++s)
      if (next_[s] < actions_[s].size()) fail_stuck(s);
    for (const auto& done : result_.devices) {
      double busy = 0;
      for (const TimedAction& t : done) busy += t.end - t.begin;
      result_.idle.push_back(result_.total - busy);
    }
    return std::move(result_);
  }

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  double ended(std::size_t s, Kind kind, std::size_t m) const {
    return ended_[static_cast<std::size_t>(kind)][s][m];
  }
  double cost(std::size_t s, Kind kind) const {
    return kind == Kind::forward    ? costs_[s].forward
           : kind == Kind::backward ? costs_[s].backward
                                    : costs_[s].weights;
  }
  // The time at which the result of this action reaches the device of stage `to`.
  double arrival(std::size_t from, std::size_t to, Action action) const {
    const auto m = static_cast<std::size_t>(action.micro_batch);
    return ended(from, action.kind, m) + (device_[from] == device_[to] ? 0 : transfer_);
  }
  // The time at which a stage's next action can begin; kNever if that is not known yet.
  double possible_at(std::size_t s) const {
    const Action a = actions_[s][next_[s]];
    double at = free_[static_cast<std::size_t>(device_[s])];
    switch (a.kind) {
      case Kind::forward:
        return s > 0 ? std::max(at, arrival(s - 1, s, a)) : at;
      case Kind::backward:
        if (s + 1 < actions_.size()) at = std::max(at, arrival(s + 1, s, a));
        return std::max(at, arrival(s, s, {Kind::forward, a.micro_batch}));
      case Kind::weights:
        break;
    }
    return std::max(at, arrival(s, s, {Kind::backward, a.micro_batch}));
  }
  // Returns the action that can begin first. If several can begin at the same time, a backward goes first
  // because other stages wait for it, then a forward, then weights. Further ties go to the smaller
  // micro-batch, then to the smaller stage.
  std::optional<TimedAction> first_possible() const {
    std::optional<TimedAction> first;
    const auto rank = [](const TimedAction& t) {
      const int order = t.action.kind == Kind::backward ? 0 : t.action.kind == Kind::forward ? 1 : 2;
      return std::tuple(t.begin, order, t.action.micro_batch, t.stage);
    };
    for (std::size_t s = 0; s < actions_.size(); ++s) {
      if (next_[s] == actions_[s].size()) continue;
      const double begin = possible_at(s);
      if (begin == kNever) continue;
      const Action a = actions_[s][next_[s]];
      const double extra = extra_.empty() ? 0 : extra_[s][next_[s]];
      const TimedAction timed{static_cast<int>(s), a, begin, begin + cost(s, a.kind) + extra};
      if (!first || rank(timed) < rank(*first)) first = timed;
    }
    return first;
  }
  void commit(const TimedAction& t) {
    const auto s = static_cast<std::size_t>(t.stage), m = static_cast<std::size_t>(t.action.micro_batch);
    double& end = ended_[static_cast<std::size_t>(t.action.kind)][s][m];
    check(end == kNever, "[simulate] stage ", s, " does ", t.action.str(), " twice");
    end = t.end;
    ++next_[s];
    free_[static_cast<std::size_t>(device_[s])] = t.end;
    result_.devices[static_cast<std::size_t>(device_[s])].push_back(t);
    result_.total = std::max(result_.total, t.end);
  }
  [[noreturn]] void fail_stuck(std::size_t s) const {
    const Action a = actions_[s][next_[s]];
    const auto m = static_cast<std::size_t>(a.micro_batch);
    // `missing` is the action for which stage s waits: the same action of a neighbouring stage, or the action
    // of this stage that must come before it.
    Action missing = a;
    std::size_t of = a.kind == Kind::forward ? s - 1 : s;
    if (a.kind == Kind::weights) missing.kind = Kind::backward;
    else if (a.kind == Kind::backward && ended(s, Kind::forward, m) == kNever) missing.kind = Kind::forward;
    else if (a.kind == Kind::backward) of = s + 1;
    fail("[simulate] deadlock: ", a.str(), " of stage ", s, " waits for ", missing.str(), " of stage ", of,
         ", which never runs; put every action after those that it needs");
  }

  const std::vector<std::vector<Action>>& actions_;
  std::vector<StageCost> costs_;
  const std::vector<std::vector<double>>& extra_;
  double transfer_;
  std::vector<int> device_;
  std::array<std::vector<std::vector<double>>, 3>
      ended_;                      // [kind][stage][micro-batch]: the end of the action
  std::vector<std::size_t> next_;  // by stage: index of its next action
  std::vector<double> free_;       // by device: the time from which it is free
  Simulation result_;
};

}  // namespace

const char* schedule_name(Schedule schedule) {
  switch (schedule) {
    case Schedule::gpipe:
      return "gpipe";
    case Schedule::one_f_one_b:
      return "1f1b";
    case Schedule::zero_bubble:
      break;
  }
  return "zero-bubble";
}

const char* kind_name(Action::Kind kind) {
  return kind == Kind::forward ? "forward" : kind == Kind::backward ? "backward" : "weights";
}

std::string Action::str() const {
  return (kind == Kind::forward ? "F" : kind == Kind::backward ? "B" : "W") + std::to_string(micro_batch);
}

std::vector<std::vector<Action>> schedule_actions(Schedule schedule, int stages, int micro_batches) {
  check_counts("schedule_actions", stages, micro_batches);
  const bool splits = schedule == Schedule::zero_bubble;
  std::vector<std::vector<Action>> actions(static_cast<std::size_t>(stages));
  for (int s = 0; s < stages; ++s) {
    std::vector<Action>& mine = actions[static_cast<std::size_t>(s)];
    // The number of forwards before the first backward. Under 1F1B one forward follows each backward.
    const int ahead = schedule == Schedule::gpipe ? micro_batches : std::min(micro_batches, stages - s);
    for (int m = 0; m < ahead; ++m) mine.push_back({Kind::forward, m});
    for (int m = 0; m < micro_batches; ++m) {
      mine.push_back({Kind::backward, m});
      // Stage s postpones the weight gradients of each micro-batch until s further micro-batches have gone
      // backward. So earlier stages get their gradients sooner.
      if (splits && m >= s) mine.push_back({Kind::weights, m - s});
      if (m + ahead < micro_batches) mine.push_back({Kind::forward, m + ahead});
    }
    for (int m = std::max(micro_batches - s, 0); splits && m < micro_batches; ++m)
      mine.push_back({Kind::weights, m});
  }
  return actions;
}

std::vector<std::vector<Action>> forward_actions(int stages, int micro_batches) {
  check_counts("forward_actions", stages, micro_batches);
  std::vector<Action> all;
  for (int m = 0; m < micro_batches; ++m) all.push_back({Kind::forward, m});
  return std::vector(static_cast<std::size_t>(stages), all);
}

std::vector<int> peak_activations(const std::vector<std::vector<Action>>& actions) {
  std::vector<int> peaks;
  for (const auto& mine : actions) {
    const bool split =
        std::any_of(mine.begin(), mine.end(), [](const Action& a) { return a.kind == Kind::weights; });
    const Kind last = split ? Kind::weights : Kind::backward;
    int alive = 0, peak = 0;
    for (const Action& a : mine) {
      alive += (a.kind == Kind::forward) - (a.kind == last);
      peak = std::max(peak, alive);
    }
    peaks.push_back(peak);
  }
  return peaks;
}

double ideal_bubble(int stages, int micro_batches) {
  check_counts("ideal_bubble", stages, micro_batches);
  return static_cast<double>(stages - 1) / (micro_batches + stages - 1);
}

double Simulation::bubble() const {
  const double all = total * static_cast<double>(devices.size());
  return all > 0 ? std::accumulate(idle.begin(), idle.end(), 0.0) / all : 0;
}

Simulation simulate(const std::vector<std::vector<Action>>& actions, const SimulationOptions& options) {
  return Simulator(actions, options).run();
}

std::string schedule_table(const std::vector<std::vector<Action>>& actions, const std::vector<int>& devices) {
  SimulationOptions options;
  options.devices = devices;
  const Simulation simulation = simulate(actions, options);
  const auto ticks = static_cast<std::size_t>(std::lround(simulation.total));
  std::vector<std::vector<std::string>> cells(actions.size(), std::vector<std::string>(ticks, ".."));
  std::size_t width = 2;
  for (const auto& done : simulation.devices)
    for (const TimedAction& t : done) {
      std::string& cell = cells[static_cast<std::size_t>(t.stage)][static_cast<std::size_t>(t.begin)];
      cell = t.action.str();
      width = std::max(width, cell.size());
    }
  const std::size_t digits = std::to_string(cells.size() - 1).size();
  std::string text;
  for (std::size_t s = 0; s < cells.size(); ++s) {
    const std::string number = std::to_string(s);
    text += "stage " + std::string(digits - number.size(), ' ') + number + " ";
    for (const std::string& cell : cells[s]) text += std::string(width - cell.size() + 1, ' ') + cell;
    text += "\n";
  }
  return text;
}

}  // namespace tapestry::distributed
