// Trains a network that balances a pole on a cart, by deep Q-learning. `dqn --help` shows how to run it.
//
// Q(s, a) is the discounted sum of rewards after action a in state s, if all later actions are the best ones.
// A network learns it from steps that are drawn from a memory of past steps (Mnih et al., "Human-level
// control through deep reinforcement learning", 2015). The target of a step is
//
//   r + discount * Q_target(s', argmax_a Q(s', a)),    or r if the episode ended in s'
//
// where Q_target is an older copy of the network, so that targets do not move with every update. The network
// chooses the action and the copy values it, because the maximum of noisy values is too large on average (van
// Hasselt, Guez and Silver, "Deep reinforcement learning with double Q-learning", 2016). The error goes
// through the Huber loss. Actions are random with the probability epsilon, which falls during training, and
// the best ones otherwise.
#include <array>
#include <chrono>
#include <cstdio>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "tapestry/apps/common/cartpole.h"
#include "tapestry/apps/common/command_line.h"
#include "tapestry/apps/common/precision.h"
#include "tapestry/apps/dqn/replay.h"
#include "tapestry/tapestry.h"

using namespace tapestry;

namespace {

constexpr double kGoal = 475;              // Gymnasium's reward_threshold of CartPole-v1; the maximum is 500
constexpr std::int64_t kTestEvery = 1024;  // steps
constexpr int kNotReached = 3;             // exit status

struct Options {
  std::uint64_t seed = 1;
  std::int64_t steps = 60'000, batch_size = 64, memory = 50'000, warmup = 1000;
  std::int64_t train_every = 32, updates = 16, target_every = 100;
  double lr = 0.0005, discount = 0.99, epsilon = 0.04, explore = 0.16;
  int test_episodes = 100;
  std::string save, precision = "f32";
};

struct QNetwork : nn::Module {
  nn::Linear& fc1 = add<nn::Linear>("fc1", {.in_features = 4, .out_features = 128});
  nn::Linear& fc2 = add<nn::Linear>("fc2", {.in_features = 128, .out_features = 128});
  nn::Linear& fc3 = add<nn::Linear>("fc3", {.in_features = 128, .out_features = 2});
  /// The values of "left" and "right" (n, 2) in the states (n, 4). They are f32 under autocast too: near 100,
  /// neighbouring bf16 numbers differ by 0.5, and the two values by less.
  Tensor forward(const Tensor& states) override {
    const Tensor features = fc2(fc1(states).relu()).relu();
    const AutocastGuard off(false);
    return fc3(features.to(kFloat32));
  }
};

using Observation = std::array<float, 4>;

Observation observe(const apps::CartPole& p) {
  return {static_cast<float>(p.x), static_cast<float>(p.x_dot), static_cast<float>(p.theta),
          static_cast<float>(p.theta_dot)};
}

apps::CartPole start() {
  const Tensor numbers = empty({4}, kFloat64).uniform_(-apps::CartPole::kStart, apps::CartPole::kStart);
  const double* s = numbers.data<double>();
  return {s[0], s[1], s[2], s[3]};
}

// The best action for each observation (n, 4), as i64 (n).
Tensor best_actions(QNetwork& network, const Tensor& observations) {
  const NoGradGuard no_grad;
  return network(observations).argmax(1);
}

// Plays all episodes at once with the best actions, and returns their mean length, which is the mean return.
// The start states depend on the seed only.
double test(QNetwork& network, std::uint64_t seed, int episodes) {
  Generator generator(seed);
  Context context = current_context();
  context.generator = &generator;
  const ContextGuard guard(context);
  std::vector<apps::CartPole> running;
  for (int i = 0; i < episodes; ++i) running.push_back(start());
  std::int64_t steps = 0;
  for (int step = 0; step < apps::CartPole::kMaxSteps && !running.empty(); ++step) {
    const Tensor rows = empty({static_cast<std::int64_t>(running.size()), 4});
    for (std::size_t i = 0; i < running.size(); ++i) {
      const Observation o = observe(running[i]);
      std::copy(o.begin(), o.end(), rows.data<float>() + 4 * i);
    }
    const Tensor actions = best_actions(network, rows);
    const auto* action = actions.data<std::int64_t>();
    steps += static_cast<std::int64_t>(running.size());
    std::erase_if(running, [&](apps::CartPole& pole) {
      pole.step(*action++ == 1);
      return pole.failed();
    });
  }
  return static_cast<double>(steps) / episodes;
}

// One update of the network by a batch of past steps.
void update(QNetwork& network, QNetwork& target, optim::Optimizer& optimizer, optim::GradScaler& scaler,
            const apps::Transitions& batch, double discount, const std::string& precision) {
  std::optional<apps::AutocastScope> autocast(precision);
  Tensor goal;
  {
    const NoGradGuard no_grad;
    const Tensor choice = network(batch.next_observations).argmax(1, true);
    const Tensor value = target(batch.next_observations).gather(1, choice).squeeze(1);
    goal = batch.rewards + value * (1 - batch.terminal) * discount;
  }
  const Tensor values = network(batch.observations).gather(1, batch.actions.unsqueeze(1)).squeeze(1);
  const Tensor loss = nn::functional::huber_loss(values, goal);
  autocast.reset();
  optimizer.zero_grad();
  scaler.scale(loss).backward();
  scaler.unscale_(optimizer);
  nn::clip_grad_norm_(network.parameters(), 10);
  scaler.step(optimizer);
  scaler.update();
}

int train(const Options& o) {
  set_num_threads(1);  // the tensors are too small for several threads
  // Report an unwritable path before training, not after it.
  if (!o.save.empty()) AtomicFile attempt(o.save);
  manual_seed(o.seed);
  QNetwork network, target;
  target.load_state_dict(network.state_dict());
  optim::Adam optimizer(network.parameters(), {.lr = o.lr});
  optim::GradScaler scaler(apps::scaler_options(o.precision));
  apps::ReplayBuffer memory(o.memory, 4);

  const auto begin = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  apps::CartPole pole = start();
  int length = 0;
  std::int64_t updates = 0, step = 0;
  double tested = 0;
  for (step = 1; step <= o.steps && tested < kGoal; ++step) {
    const double explored =
        std::min(1.0, static_cast<double>(step) / (o.explore * static_cast<double>(o.steps)));
    const double epsilon = 1 + explored * (o.epsilon - 1);
    const Observation before = observe(pole);
    const Tensor chance = rand({2});
    const bool random = chance.data<float>()[0] < epsilon;
    const bool right =
        random ? chance.data<float>()[1] < 0.5f
               : best_actions(network, tensor(std::vector<float>(before.begin(), before.end()), Shape{1, 4}))
                         .item<std::int64_t>() == 1;
    pole.step(right);
    const bool failed = pole.failed();
    memory.add(before, right, 1, observe(pole), failed);
    if (++length == apps::CartPole::kMaxSteps || failed) pole = start(), length = 0;

    if (step < o.warmup || step % o.train_every != 0) continue;
    for (std::int64_t i = 0; i < o.updates; ++i) {
      update(network, target, optimizer, scaler, memory.sample(o.batch_size), o.discount, o.precision);
      if (++updates % o.target_every == 0) target.load_state_dict(network.state_dict());
    }
    if (step % kTestEvery >= o.train_every) continue;
    // Other start states than those of the final test.
    tested = test(network, o.seed + 2, 50);
    std::printf("step %lld  epsilon %.2f  mean return %.1f of the best actions over 50 episodes\n",
                static_cast<long long>(step), epsilon, tested);
  }

  const double result = test(network, o.seed + 1, o.test_episodes);
  std::printf(
      "mean return %.1f of %d over %d test episodes after %lld steps, seed %llu: goal of %.0f %s\n%.1f s\n",
      result, apps::CartPole::kMaxSteps, o.test_episodes, static_cast<long long>(step - 1),
      static_cast<unsigned long long>(o.seed), kGoal, result >= kGoal ? "reached" : "not reached", seconds());
  if (!o.save.empty()) nn::save_model(o.save, network);
  return result >= kGoal ? 0 : kNotReached;
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  apps::CommandLine line("dqn", "Trains a network to balance a pole on a cart, by deep Q-learning.");
  const auto count = [](std::int64_t low) { return apps::between<std::int64_t>(low, 100'000'000); };
  line.add("--seed", o.seed, "Seed of initial weights, start states and random actions",
           {.check = apps::between<std::uint64_t>(0, UINT64_MAX)});
  line.add("--steps", o.steps,
           "Maximum number of steps; training ends when 50 episodes have a mean return of 475",
           {.check = count(1)});
  line.add("--batch-size", o.batch_size, "Past steps per update", {.check = count(1)});
  line.add("--memory", o.memory, "Number of past steps that are kept", {.check = count(1)});
  line.add("--warmup", o.warmup, "Steps before the first update", {.check = count(0)});
  line.add("--train-every", o.train_every, "Steps between two rounds of updates", {.check = count(1)});
  line.add("--updates", o.updates, "Updates per round", {.check = count(1)});
  line.add("--target-every", o.target_every, "Updates between two copies to the target network",
           {.check = count(1)});
  line.add("--lr", o.lr, "Learning rate of Adam", {.check = apps::between(1e-9, 10.0)});
  line.add("--discount", o.discount, "Discount factor per step", {.check = apps::between(0.0, 0.9999)});
  line.add("--epsilon", o.epsilon, "Final probability of a random action",
           {.check = apps::between(0.0, 1.0)});
  line.add("--explore", o.explore, "Part of the steps in which epsilon falls from 1 to its final value",
           {.check = apps::between(1e-9, 1.0)});
  line.add("--test-episodes", o.test_episodes,
           "Episodes of the final test, which always takes the best action",
           {.check = apps::between(1, 100'000)});
  apps::add_precision(line, o.precision);
  line.add("--save", o.save, "Write the network to this file, in the safetensors format");
  line.footer("Exit status: 0 goal reached, 1 failed, 2 wrong options, 3 goal not reached.");
  return line.run(argc, argv, [&] { return train(o); });
}
