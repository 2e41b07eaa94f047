// Teaches a policy to balance a pole on a cart, by policy gradient. `reinforce --help` says how to run it.
//
// REINFORCE with a baseline (Williams, "Simple statistical gradient-following algorithms for connectionist
// reinforcement learning", 1992; Sutton and Barto, "Reinforcement Learning", 2nd edition, section 13.4): play
// whole episodes, then make each action more likely in proportion to how much better the return that followed
// it was than what was expected there:
//
//   gradient = mean over all steps t of  (G_t - b(s_t)) * gradient of log pi(a_t | s_t)
//
// G_t is the discounted sum of rewards from t on. The baseline b is a second network, trained to predict G_t;
// it takes nothing away from the gradient but noise, because it does not depend on the action. Actor and
// critic share no parameter, and Adam is indifferent to the scale of a gradient, so their losses are added
// without a weight.
#include <chrono>
#include <cstdio>
#include <deque>
#include <numeric>
#include <string>

#include "tapestry/apps/common/command_line.h"
#include "tapestry/apps/reinforce/cartpole.h"
#include "tapestry/apps/reinforce/episodes.h"
#include "tapestry/tapestry.h"

using namespace tapestry;

namespace {

constexpr double kGoal = 475;   // Gymnasium's reward_threshold of CartPole-v1; 500 is the most there is
constexpr int kNotReached = 3;  // exit status

struct Options {
  std::uint64_t seed = 1;
  int episodes = 16, updates = 500, test_episodes = 100;
  double lr = 0.005, discount = 0.99;
  std::string save;
};

int train(const Options& o) {
  set_num_threads(1);  // tensors this small are not worth sharing
  manual_seed(o.seed);
  apps::ActorCritic policy;
  optim::Adam optimizer(policy.parameters(), {.lr = o.lr});

  const auto start = std::chrono::steady_clock::now();
  std::deque<double> recent;  // mean returns of the last ten updates
  double mean = 0;
  for (int update = 1; update <= o.updates && (recent.size() < 10 || mean < kGoal); ++update) {
    const apps::Episodes seen = apps::play(policy, o.episodes, o.discount);

    optimizer.zero_grad();
    const auto [log_probability, expected] = policy.forward(seen.observations, seen.actions);
    const Tensor advantage = seen.returns - expected.detach();
    const Tensor loss = mse_loss(expected, seen.returns) - (log_probability * advantage).mean();
    loss.backward();
    optimizer.step();

    recent.push_back(seen.mean_length);
    if (recent.size() > 10) recent.pop_front();
    mean = std::accumulate(recent.begin(), recent.end(), 0.0) / static_cast<double>(recent.size());
    if (update % 10 == 0)
      std::printf("update %d  mean return %.1f over the last %zu updates\n", update, mean, recent.size());
  }

  const std::vector<int> lengths = apps::test_lengths(policy, o.seed + 1, o.test_episodes, 0, 1);
  const double tested = std::accumulate(lengths.begin(), lengths.end(), 0.0) / o.test_episodes;
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::printf("mean return %.1f of %d over %d test episodes, after %.1f s, seed %llu: goal of %.0f %s\n",
              tested, apps::CartPole::kMaxSteps, o.test_episodes, seconds,
              static_cast<unsigned long long>(o.seed), kGoal, tested >= kGoal ? "reached" : "not reached");
  if (!o.save.empty()) nn::save_model(o.save, policy);
  return tested >= kGoal ? 0 : kNotReached;
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CLI::App app{"Teaches a policy to balance a pole on a cart, by policy gradient.", "reinforce"};
  app.option_defaults()->always_capture_default();
  app.add_option("--seed", o.seed, "Of initial weights, environments and actions")
      ->check(apps::between<std::uint64_t>(0, ~std::uint64_t{0}));
  app.add_option("--episodes", o.episodes, "Played side by side for each update")
      ->check(apps::between(1, 100'000));
  app.add_option("--updates", o.updates, "At most; it ends when ten in a row had a mean return of 475")
      ->check(apps::between(1, 1'000'000));
  app.add_option("--lr", o.lr, "Learning rate of Adam")->check(apps::between(1e-9, 10.0));
  app.add_option("--discount", o.discount, "What a reward one step later is worth")
      ->check(apps::between(0.0, 0.9999));
  app.add_option("--test-episodes", o.test_episodes, "Played at the end, always with the likelier action")
      ->check(apps::between(1, 100'000));
  app.add_option("--save", o.save, "File for the policy, in safetensors");
  app.footer("Exit status: 0 goal reached, 1 failed, 2 wrong options, 3 goal not reached.");
  return apps::run(app, argc, argv, [&] { return train(o); });
}
