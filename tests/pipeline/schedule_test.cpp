// Tests the schedules: their order, their peak activations, their idle time, and that they do not deadlock.
#include "tapestry/distributed/pipeline/schedule.h"

#include <map>

#include "tapestry/tapestry.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::distributed;
using Kind = Action::Kind;
using Lists = std::vector<std::vector<Action>>;

namespace {

constexpr int kMaxStages = 8, kMaxMicroBatches = 16;

template <class F>
void for_each_size(const F& f) {
  for (const Schedule schedule : {Schedule::gpipe, Schedule::one_f_one_b, Schedule::zero_bubble})
    for (int p = 1; p <= kMaxStages; ++p)
      for (int m = 1; m <= kMaxMicroBatches; ++m) {
        INFO(schedule_name(schedule) << ", " << p << " stages, " << m << " micro-batches");
        f(schedule, p, m);
      }
}

// Returns text such as "F0 F1 B0 B1".
std::string text_of(const std::vector<Action>& actions) {
  std::string text;
  for (const Action& a : actions) text += (text.empty() ? "" : " ") + a.str();
  return text;
}

std::vector<int> numbers(const std::vector<Action>& actions, Kind kind) {
  std::vector<int> found;
  for (const Action& a : actions)
    if (a.kind == kind) found.push_back(a.micro_batch);
  return found;
}

std::vector<int> up_to(int n) {
  std::vector<int> all;
  for (int i = 0; i < n; ++i) all.push_back(i);
  return all;
}

}  // namespace

TEST_CASE("every stage runs every micro-batch once forward and once backward, in order") {
  for_each_size([](Schedule schedule, int p, int m) {
    const Lists actions = schedule_actions(schedule, p, m);
    REQUIRE(actions.size() == static_cast<std::size_t>(p));
    for (const auto& mine : actions) {
      CHECK(numbers(mine, Kind::forward) == up_to(m));
      CHECK(numbers(mine, Kind::backward) == up_to(m));
      CHECK(numbers(mine, Kind::weights) == up_to(schedule == Schedule::zero_bubble ? m : 0));
      int done[3] = {};  // a backward must follow its forward, and weights their backward
      for (const Action& a : mine) {
        ++done[static_cast<int>(a.kind)];
        CHECK(done[0] >= done[1]);
        CHECK(done[1] >= done[2]);
      }
    }
  });
}

TEST_CASE("the peak number of micro-batches alive is that of each schedule") {
  for_each_size([](Schedule schedule, int p, int m) {
    const std::vector<int> peaks = peak_activations(schedule_actions(schedule, p, m));
    for (int s = 0; s < p; ++s)
      CHECK(peaks[static_cast<std::size_t>(s)] == (schedule == Schedule::gpipe         ? m
                                                   : schedule == Schedule::one_f_one_b ? std::min(m, p - s)
                                                                                       : std::min(m, p)));
  });
  CHECK(peak_activations({}).empty());
}

TEST_CASE("schedules of two and three stages order their actions as expected") {
  const Lists one = schedule_actions(Schedule::one_f_one_b, 3, 4),
              all = schedule_actions(Schedule::gpipe, 2, 3);
  CHECK(text_of(one[0]) == "F0 F1 F2 B0 F3 B1 B2 B3");
  CHECK(text_of(one[1]) == "F0 F1 B0 F2 B1 F3 B2 B3");
  CHECK(text_of(one[2]) == "F0 B0 F1 B1 F2 B2 F3 B3");
  CHECK(text_of(all[0]) == "F0 F1 F2 B0 B1 B2");
  CHECK(text_of(all[1]) == "F0 F1 F2 B0 B1 B2");
  const Lists zero = schedule_actions(Schedule::zero_bubble, 3, 4);
  CHECK(text_of(zero[0]) == "F0 F1 F2 B0 W0 F3 B1 W1 B2 W2 B3 W3");
  CHECK(text_of(zero[1]) == "F0 F1 B0 F2 B1 W0 F3 B2 W1 B3 W2 W3");
  CHECK(text_of(zero[2]) == "F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3");
  CHECK(text_of(forward_actions(2, 3)[1]) == "F0 F1 F2");
  CHECK(std::string(schedule_name(Schedule::gpipe)) == "gpipe");
  CHECK(std::string(schedule_name(Schedule::one_f_one_b)) == "1f1b");
  CHECK(std::string(schedule_name(Schedule::zero_bubble)) == "zero-bubble");
}

TEST_CASE("the idle fraction equals the formulas of the papers") {
  for_each_size([](Schedule schedule, int p, int m) {
    if (schedule == Schedule::zero_bubble) return;
    for (const StageCost cost : {StageCost{1, 1}, StageCost{1, 2}, StageCost{0.5, 0.25}}) {
      SimulationOptions options;
      options.costs.assign(static_cast<std::size_t>(p), cost);
      const Simulation s = simulate(schedule_actions(schedule, p, m), options);
      CHECK(s.total == Approx((m + p - 1) * (cost.forward + cost.backward)).epsilon(1e-12));
      CHECK(s.bubble() == Approx(ideal_bubble(p, m)).margin(1e-12));
      for (const double idle : s.idle)
        CHECK(idle == Approx((p - 1) * (cost.forward + cost.backward)).margin(1e-9));
    }
  });
}

TEST_CASE("zero_bubble leaves a third of the idle time of 1F1B") {
  for (int p = 1; p <= kMaxStages; ++p)
    for (int m = 1; m <= kMaxMicroBatches; ++m) {
      INFO(p << " stages, " << m << " micro-batches");
      const Simulation halves = simulate(schedule_actions(Schedule::zero_bubble, p, m));
      SimulationOptions whole;
      whole.costs.assign(static_cast<std::size_t>(p), {.forward = 1, .backward = 2});
      const Simulation one = simulate(schedule_actions(Schedule::one_f_one_b, p, m), whole);
      // With fewer micro-batches than stages there are not enough weights actions to fill the idle time.
      if (m >= p) CHECK(halves.total == 3 * m + p - 1);
      else CHECK(halves.total <= one.total - (p > 1));
      CHECK(one.total == 3 * (m + p - 1));
    }
}

TEST_CASE("a simulation respects dependencies for any costs and placement") {
  // An action ends before actions that depend on it begin, and a device runs one action at a time.
  for_each_size([](Schedule schedule, int p, int m) {
    for (const int devices : {1, 2, p}) {
      SimulationOptions options;
      options.transfer = devices == 2 ? 0.25 : 0;
      for (int s = 0; s < p; ++s) {
        options.costs.push_back({1 + 0.5 * (s % 3), s == 1 ? 0.0 : 2.0, 0.75});
        options.devices.push_back(s % devices);
      }
      const Lists actions = schedule_actions(schedule, p, m);
      const Simulation done = simulate(actions, options);
      std::map<std::tuple<int, Kind, int>, TimedAction> by_name;
      Lists order(actions.size());
      for (const auto& device : done.devices) {
        double free = 0;
        for (const TimedAction& t : device) {
          CHECK(t.begin >= free);
          free = t.end;
          by_name.emplace(std::tuple(t.stage, t.action.kind, t.action.micro_batch), t);
          order[static_cast<std::size_t>(t.stage)].push_back(t.action);
        }
      }
      CHECK(order == actions);
      const auto arrived = [&](int from, int to, Kind kind, int micro) {
        const bool travels =
            options.devices[static_cast<std::size_t>(from)] != options.devices[static_cast<std::size_t>(to)];
        return by_name.at({from, kind, micro}).end + (travels ? options.transfer : 0);
      };
      for (const auto& [name, t] : by_name) {
        const auto [stage, kind, micro] = name;
        if (kind == Kind::forward && stage > 0) CHECK(t.begin >= arrived(stage - 1, stage, kind, micro));
        if (kind == Kind::backward) CHECK(t.begin >= by_name.at({stage, Kind::forward, micro}).end);
        if (kind == Kind::weights) CHECK(t.begin >= by_name.at({stage, Kind::backward, micro}).end);
        if (kind == Kind::backward && stage + 1 < p) CHECK(t.begin >= arrived(stage + 1, stage, kind, micro));
      }
    }
  });
}

TEST_CASE("forward_actions() has the idle time of one direction") {
  const Simulation s = simulate(forward_actions(3, 4));
  CHECK(s.total == Approx(6));
  CHECK(s.bubble() == Approx(1 - 4.0 / 6));
  CHECK(simulate({}).total == 0);
  CHECK(simulate({}).bubble() == 0);
}

TEST_CASE("a slow link or a slow stage increases the idle time") {
  SimulationOptions options;
  options.transfer = 0.5;
  const Simulation one = simulate(schedule_actions(Schedule::one_f_one_b, 2, 4), options),
                   all = simulate(schedule_actions(Schedule::gpipe, 2, 4), options);
  CHECK(one.bubble() > ideal_bubble(2, 4));
  CHECK(all.total == Approx(2 * 5 + 2 * 0.5));
  // If the link is slow, 1F1B must take longer than GPipe: it waits for the link in every round, and GPipe
  // only once in each direction.
  CHECK(one.total > all.total);
  const Simulation slow = simulate(schedule_actions(Schedule::gpipe, 2, 4),
                                   {.costs = {{1, 1, 1}, {3, 3, 3}}, .transfer = 0, .devices = {}});
  CHECK(slow.total == Approx(4 * 6 + 2));
  CHECK(slow.idle[1] == Approx(2));
  // The second stage's last backward takes 5 longer, and the first stage waits for it.
  const auto actions = schedule_actions(Schedule::gpipe, 2, 4);
  std::vector<std::vector<double>> extra(2, std::vector<double>(8));
  const double before = simulate(actions).total;
  extra[1][7] = 5;
  CHECK(simulate(actions, {.extra = extra}).total == Approx(before + 5));
  extra[1].pop_back();
  CHECK_THROWS_WITH(simulate(actions, {.extra = extra}), ContainsSubstring("give one for each action"));
}

TEST_CASE("a table shows the actions and idle units of each stage") {
  CHECK(schedule_table(schedule_actions(Schedule::one_f_one_b, 2, 3)) ==
        "stage 0  F0 F1 .. B0 F2 B1 .. B2\n"
        "stage 1  .. F0 B0 F1 B1 F2 B2 ..\n");
  CHECK(schedule_table(schedule_actions(Schedule::gpipe, 2, 2)) ==
        "stage 0  F0 F1 .. .. B0 B1\n"
        "stage 1  .. F0 F1 B0 B1 ..\n");
  CHECK(schedule_table(schedule_actions(Schedule::gpipe, 2, 1), {0, 0}) ==
        "stage 0  F0 .. .. B0\n"
        "stage 1  .. F0 B0 ..\n");
  CHECK_THAT(schedule_table(schedule_actions(Schedule::gpipe, 11, 11)),
             ContainsSubstring("stage  0   F0  F1") && ContainsSubstring("stage 10   ..  ..") &&
                 ContainsSubstring(" F10"));
}

TEST_CASE("actions that deadlock and bad arguments are refused") {
  const Action f0{Kind::forward, 0}, b0{Kind::backward, 0}, f1{Kind::forward, 1}, b1{Kind::backward, 1};
  CHECK_THROWS_WITH(simulate({{b0, f0}}),
                    ContainsSubstring("deadlock: B0 of stage 0 waits for F0 of stage 0"));
  CHECK_THROWS_WITH(simulate({{f0}, {f1}}),
                    ContainsSubstring("deadlock: F1 of stage 1 waits for F1 of stage 0"));
  CHECK_THROWS_WITH(simulate({{f0, b0, f1, b1}, {f0, f1, b0, b1}}), ContainsSubstring("deadlock"));
  CHECK_THROWS_WITH(simulate({{f0, b0}, {f0}}), ContainsSubstring("B0 of stage 1, which never runs"));
  CHECK_THROWS_WITH(simulate({{f0, {Kind::weights, 0}, b0}}),
                    ContainsSubstring("deadlock: W0 of stage 0 waits for B0 of stage 0"));
  CHECK_THROWS_WITH(simulate({{f0, f0}}), ContainsSubstring("does F0 twice"));
  CHECK_THROWS_WITH(simulate({{{Kind::forward, -1}}}), ContainsSubstring("has F-1"));
  CHECK_THROWS_WITH(simulate({{f0, {Kind::forward, 2147483647}}}), ContainsSubstring("has F2147483647"));
  CHECK_THROWS_WITH(simulate({{f0}}, {.costs = {{-1, 1, 1}}, .transfer = 0, .devices = {}}),
                    ContainsSubstring("is negative"));
  CHECK_THROWS_WITH(simulate({{f0}}, {.costs = {}, .transfer = 0, .devices = {0, 1}}),
                    ContainsSubstring("give one per stage"));
  CHECK_THROWS_WITH(simulate({{f0}}, {.costs = {}, .transfer = 0, .devices = {-1}}),
                    ContainsSubstring("stage 0 is on device -1"));
  CHECK_THROWS_WITH(schedule_actions(Schedule::gpipe, 0, 4),
                    ContainsSubstring("0 stages and 4 micro-batches"));
  CHECK_THROWS_WITH(schedule_actions(Schedule::gpipe, 4, 0),
                    ContainsSubstring("4 stages and 0 micro-batches"));
  CHECK_THROWS_WITH(forward_actions(-1, 1), ContainsSubstring("-1 stages"));
  CHECK_THROWS_WITH(ideal_bubble(1, 0), ContainsSubstring("[ideal_bubble]"));
}
