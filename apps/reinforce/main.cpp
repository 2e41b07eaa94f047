// Trains a policy to balance a pole on a cart, by policy gradient. `reinforce --help` shows how to run it.
//
// REINFORCE with a baseline (Williams, "Simple statistical gradient-following algorithms for connectionist
// reinforcement learning", 1992; Sutton and Barto, "Reinforcement Learning", 2nd edition, section 13.4): play
// whole episodes, then make each action more likely in proportion to how much its return exceeded the
// expected return of that state:
//
//   gradient = mean over all steps t of  (G_t - b(s_t)) * gradient of log pi(a_t | s_t)
//
// G_t is the discounted sum of rewards from t on. The baseline b is a second network, trained to predict G_t;
// it reduces the variance of the gradient and adds no bias, because it does not depend on the action. Actor
// and critic share no parameters, and Adam is invariant to the scale of a gradient, so their losses are added
// without weights.
//
// With N ranks (tapestry-run --nproc-per-node 2 reinforce), each rank plays its own episodes and gradients
// are averaged, so an update uses N times as many episodes.
#include <chrono>
#include <cstdio>
#include <deque>
#include <memory>
#include <numeric>
#include <optional>
#include <string>

#include "tapestry/apps/common/cartpole.h"
#include "tapestry/apps/common/command_line.h"
#include "tapestry/apps/common/precision.h"
#include "tapestry/apps/reinforce/episodes.h"
#include "tapestry/tapestry.h"

using namespace tapestry;

namespace {

constexpr double kGoal = 475;  // Gymnasium's reward_threshold of CartPole-v1; the maximum is 500
constexpr std::size_t kSteady =
    10;                         // the goal must be reached on average over this number of consecutive updates
constexpr int kNotReached = 3;  // exit status

struct Options {
  std::uint64_t seed = 1;
  int episodes = 16, updates = 500, test_episodes = 100;
  double lr = 0.005, discount = 0.99;
  std::string save, precision = "f32";
};

int train(const Options& o) {
  set_num_threads(1);  // the tensors are too small for several threads
  const std::shared_ptr<distributed::ProcessGroup> world = distributed::init_process_group();
  const bool prints = world->rank() == 0;
  // Report an unwritable path before training, not after it.
  if (!o.save.empty()) distributed::on_rank_0(*world, "save", [&] { AtomicFile attempt(o.save); });

  manual_seed(o.seed);  // the same weights on every rank
  apps::ActorCritic policy;
  distributed::manual_seed_by_rank(*world, o.seed);  // different start states and actions on each rank
  distributed::DistributedDataParallel ddp(policy, {.process_group = world});
  optim::Adam optimizer(policy.parameters(), {.lr = o.lr});
  optim::GradScaler scaler(apps::scaler_options(o.precision));

  const auto start = std::chrono::steady_clock::now();
  std::deque<double> recent;  // mean returns of the last updates, over all ranks
  double mean = 0;
  for (int update = 1; update <= o.updates && (recent.size() < kSteady || mean < kGoal); ++update) {
    std::optional<apps::AutocastScope> autocast(o.precision);
    const apps::Episodes seen = apps::play(policy, o.episodes, o.discount);
    distributed::GlobalMean returns;
    returns.add(seen.mean_length, o.episodes);
    recent.push_back(returns.reduce(*world));

    // Ranks have played different numbers of steps. DDP divides sums of gradients by the number of ranks, so
    // each loss is a sum divided by the mean number of steps per rank. The result is the mean over the steps
    // of all ranks. Means per rank would give less weight to the steps of ranks with longer episodes.
    const double steps = recent.back() * o.episodes;
    optimizer.zero_grad();
    const auto [log_probability, expected] = ddp(seen.observations, seen.actions);
    const Tensor advantage = seen.returns - expected.detach();
    const Tensor loss =
        mse_loss(expected, seen.returns, Reduction::sum) - (log_probability * advantage).sum();
    autocast.reset();
    scaler.scale(loss / steps).backward();
    scaler.step(optimizer);
    scaler.update();

    if (recent.size() > kSteady) recent.pop_front();
    mean = std::accumulate(recent.begin(), recent.end(), 0.0) / static_cast<double>(recent.size());
    if (prints && update % 10 == 0)
      std::printf("update %d  mean return %.1f over the last %zu updates\n", update, mean, recent.size());
  }

  const apps::AutocastScope autocast(o.precision);
  distributed::GlobalMean tested;  // the test episodes are divided among the ranks
  for (const int length :
       apps::test_lengths(policy, o.seed + 1, o.test_episodes, world->rank(), world->size()))
    tested.add(length);
  const double result = tested.reduce(*world);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (prints)
    std::printf(
        "mean return %.1f of %d over %d test episodes, %d ranks, seed %llu: goal of %.0f %s\n%.1f s\n",
        result, apps::CartPole::kMaxSteps, o.test_episodes, world->size(),
        static_cast<unsigned long long>(o.seed), kGoal, result >= kGoal ? "reached" : "not reached", seconds);
  if (!o.save.empty()) distributed::on_rank_0(*world, "save", [&] { nn::save_model(o.save, policy); });
  return result >= kGoal ? 0 : kNotReached;
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  apps::CommandLine line("reinforce", "Trains a policy to balance a pole on a cart, by policy gradient.");
  line.add("--seed", o.seed, "Seed of initial weights, start states and actions",
           {.check = apps::between<std::uint64_t>(0, UINT64_MAX)});
  line.add("--episodes", o.episodes, "Episodes per update on each rank",
           {.check = apps::between(1, 100'000)});
  line.add(
      "--updates", o.updates,
      "Maximum number of updates; training ends when the mean return of ten consecutive updates reaches 475",
      {.check = apps::between(1, 1'000'000)});
  line.add("--lr", o.lr, "Learning rate of Adam", {.check = apps::between(1e-9, 10.0)});
  line.add("--discount", o.discount, "Discount factor per step", {.check = apps::between(0.0, 0.9999)});
  line.add("--test-episodes", o.test_episodes,
           "Episodes of the final test, which always takes the most likely action",
           {.check = apps::between(1, 100'000)});
  apps::add_precision(line, o.precision);
  line.add("--save", o.save, "Write the policy to this file, in the safetensors format");
  line.footer("Exit status: 0 goal reached, 1 failed, 2 wrong options, 3 goal not reached.");
  return line.run(argc, argv, [&] { return train(o); });
}
