#include "tapestry/apps/reinforce/episodes.h"

#include <numeric>

#include "tapestry/apps/common/cartpole.h"
#include "tapestry/tapestry.h"

namespace apps {

using namespace tapestry;

namespace {

std::vector<CartPole> starts(std::int64_t count) {
  const Tensor numbers = empty({count, 4}, DType::f64).uniform_(-CartPole::kStart, CartPole::kStart);
  const double* s = numbers.data<double>();
  std::vector<CartPole> poles;
  for (std::int64_t i = 0; i < count; ++i, s += 4) poles.push_back({s[0], s[1], s[2], s[3]});
  return poles;
}

Tensor observe(const std::vector<CartPole>& poles, const std::vector<std::int64_t>& running) {
  const Tensor rows = empty({static_cast<std::int64_t>(running.size()), 4});
  float* out = rows.data<float>();
  for (const std::int64_t i : running) {
    const CartPole& p = poles[static_cast<std::size_t>(i)];
    for (const double value : {p.x, p.x_dot, p.theta, p.theta_dot}) *out++ = static_cast<float>(value);
  }
  return rows;
}

// Plays until all episodes have ended and returns their lengths. choose(observations) returns an action, 0 or
// 1, per row. record(episodes, observations, actions) is called after each step with the numbers of the
// running episodes.
template <class Choose, class Record>
std::vector<int> play_all(std::vector<CartPole> poles, const Choose& choose, const Record& record) {
  const NoGradGuard no_grad;
  std::vector<int> lengths(poles.size(), 0);
  std::vector<std::int64_t> running(poles.size());
  std::iota(running.begin(), running.end(), 0);
  while (!running.empty()) {
    const Tensor observations = observe(poles, running);
    const Tensor actions = choose(observations);
    record(running, observations, actions);
    const std::int64_t* action = actions.data<std::int64_t>();
    std::erase_if(running, [&](std::int64_t i) {
      CartPole& pole = poles[static_cast<std::size_t>(i)];
      pole.step(*action++ == 1);
      return ++lengths[static_cast<std::size_t>(i)] == CartPole::kMaxSteps || pole.failed();
    });
  }
  return lengths;
}

}  // namespace

Episodes play(ActorCritic& policy, std::int64_t count, double discount) {
  std::vector<Tensor> observations, actions;
  std::vector<std::int64_t> episode;  // the episode of each row
  const auto sample = [&](const Tensor& observed) {
    return distributions::Categorical({.logits = policy.scores(observed)}).sample();
  };
  const std::vector<int> lengths =
      play_all(starts(count), sample, [&](const auto& running, const Tensor& observed, const Tensor& taken) {
        episode.insert(episode.end(), running.begin(), running.end());
        observations.push_back(observed);
        actions.push_back(taken);
      });

  const auto rows = static_cast<std::int64_t>(episode.size());
  const Tensor returns = empty({rows});
  std::vector<double> from_here(lengths.size(), 0);
  for (std::int64_t row = rows - 1; row >= 0; --row) {
    double& sum = from_here[static_cast<std::size_t>(episode[static_cast<std::size_t>(row)])];
    sum = 1 + discount * sum;
    returns.data<float>()[row] = static_cast<float>((1 - discount) * sum);
  }
  return {cat(observations), cat(actions), returns, static_cast<double>(rows) / static_cast<double>(count)};
}

std::vector<int> test_lengths(ActorCritic& policy, std::uint64_t seed, int count, int first, int stride) {
  Generator generator(seed);
  std::vector<CartPole> all, own;
  {
    Context context = current_context();
    context.generator = &generator;
    const ContextGuard guard(context);
    all = starts(count);
  }
  for (int i = first; i < count; i += stride) own.push_back(all[static_cast<std::size_t>(i)]);
  return play_all(
      own, [&](const Tensor& observed) { return policy.scores(observed).argmax(1); }, [](auto&&...) {});
}

}  // namespace apps
