// Runs apps/dqn as a user does, and tests its memory.
#include "tapestry/apps/dqn/replay.h"

#include <array>

#include "tapestry/nn/checkpoint.h"
#include "tapestry/tapestry.h"
#include "tests/apps/program.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"

using tests::Ended;
using tests::Launch;

namespace {

Ended dqn(std::vector<std::string> arguments) {
  return tests::run(Launch{.arguments = std::move(arguments), .program = "dqn"});
}
// A run of some seconds, too short to reach the goal.
std::vector<std::string> few(std::vector<std::string> more = {}) {
  std::vector<std::string> all = {"--steps",   "1100", "--warmup",        "100", "--train-every", "128",
                                  "--updates", "4",    "--test-episodes", "3"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}
// The output without the last line, which shows the run time.
std::string results(const std::string& out) { return out.substr(0, out.rfind('\n', out.size() - 2) + 1); }

}  // namespace

TEST_CASE("dqn trains, is repeatable by its seed, and saves the network") {
  const tests::TempDir folder;
  const Ended run = dqn(few({"--save", folder / "network.safetensors"}));
  CHECK(run.status == 3);
  CHECK(run.err == "");
  CHECK_THAT(run.out,
             ContainsSubstring("step 1024  epsilon") &&
                 ContainsSubstring("over 3 test episodes after 1100 steps, seed 1: goal of 475 not reached"));
  CHECK(tapestry::nn::load_tensors(folder / "network.safetensors").size() == 6);
  CHECK(results(dqn(few()).out) == results(run.out));
  CHECK(results(dqn(few({"--seed", "2"})).out) != results(run.out));
}

TEST_CASE("dqn reports invalid options with status 2, and an unwritable path before training") {
  for (const std::vector<std::string>& wrong : {std::vector<std::string>{"--lr", "0"},
                                                {"--steps", "0"},
                                                {"--memory", "-1"},
                                                {"--epsilon", "1.5"},
                                                {"--discount", "nan"},
                                                {"--bogus"}}) {
    const Ended run = dqn(wrong);
    CHECK(run.status == 2);
    CHECK_THAT(run.err, ContainsSubstring("error: [dqn]") && ContainsSubstring(wrong[0]));
  }
  const Ended lost = dqn({"--save", "/nowhere/network.safetensors"});
  CHECK(lost.status == 1);
  CHECK(lost.out == "");
  CHECK_THAT(lost.err, ContainsSubstring("/nowhere/network.safetensors"));
}

TEST_CASE("the replay buffer replaces the oldest steps, and samples the others only") {
  using namespace tapestry;
  apps::ReplayBuffer memory(3, 2);
  CHECK_THROWS_AS(memory.sample(1), ValueError);
  const auto add = [&](int i) {
    const std::array<float, 2> from = {float(i), 0.5f}, to = {float(i) + 1, -0.5f};
    memory.add(from, i % 2, float(10 * i), to, i == 4);
  };
  add(0), add(1);
  CHECK(memory.size() == 2);
  manual_seed(1);
  const apps::Transitions two = memory.sample(100);
  CHECK(equal(two.observations.select(1, 0) * 10, two.rewards));
  CHECK(equal(two.observations.select(1, 0) + 1, two.next_observations.select(1, 0)));
  CHECK(two.rewards.min().item() == 0);
  CHECK(two.rewards.max().item() == 10);
  CHECK(equal(two.rewards == 10, two.actions == 1));
  add(2), add(3), add(4);
  CHECK(memory.size() == 3);
  CHECK(equal(memory.rows().rewards, tensor({30.0, 40.0, 20.0})));
  CHECK(equal(memory.rows().terminal, tensor({0.0, 1.0, 0.0})));
  CHECK(equal(memory.rows().actions, tensor({1, 0, 0})));
  const std::array<float, 3> three = {};
  const std::array<float, 2> fits = {};
  CHECK_THROWS_AS(memory.add(three, 0, 0, fits, false), ValueError);
  CHECK_THROWS_AS(memory.add(fits, 0, 0, three, false), ValueError);
  CHECK_THROWS_AS(apps::ReplayBuffer(0, 2), ValueError);
}
