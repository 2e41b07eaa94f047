#pragma once
// A small model that tests of Strategy train in every mode, with ragged batches whose ranks have different
// numbers of valid targets.
#include <cmath>
#include <mutex>

#include "tapestry/tapestry.h"
#include "tests/support/catch.h"
#include "tests/support/distributed.h"

namespace tapestry::strategy_net {

using namespace tapestry::distributed;
using distributed_test::Group, distributed_test::on_ranks, distributed_test::require;
using Tensors = std::vector<Tensor>;

struct Mlp : nn::Module {
  nn::Linear& fc1 = add<nn::Linear>("fc1", {.in_features = 5, .out_features = 7});
  nn::Linear& fc2 = add<nn::Linear>("fc2", {.in_features = 7, .out_features = 6});
  nn::Linear& fc3 = add<nn::Linear>("fc3", {.in_features = 6, .out_features = 4});
  Tensor forward(const Tensor& x) override { return fc3(tanh(fc2(tanh(fc1(x))))); }
};

constexpr std::int64_t kSamples = 11;  // neither two ranks nor two parts divide it

inline std::unique_ptr<Mlp> make_mlp() {
  static std::mutex mutex;  // ranks are threads, and share the generator
  const std::lock_guard lock(mutex);
  manual_seed(3);
  auto net = std::make_unique<Mlp>();
  net->to(DType::f64);
  return net;
}

// A step's samples. The first rank has fewer valid targets than the second, and none in the last step.
inline Batch whole_batch(int step) {
  std::vector<double> x;
  std::vector<std::int64_t> targets;
  for (std::int64_t i = 0; i < kSamples; ++i) {
    for (std::int64_t k = 0; k < 5; ++k) x.push_back(std::sin(static_cast<double>(i * 7 + k * 3 + step * 5)));
    targets.push_back((step == 2 ? i < 6 : i % 3 == 0 && i < 7) ? -100 : (i + step) % 4);
  }
  return {{tensor(x, {kSamples, 5}, DType::f64)}, {tensor(targets, {kSamples})}};
}

inline double valid(const Tensor& targets) { return targets.ne(-100).sum().item(); }

inline Batch narrowed(const Batch& all, const Samples& s) {
  return {{all.inputs[0].narrow(0, s.first, s.count).contiguous()},
          {all.targets[0].narrow(0, s.first, s.count).contiguous()}};
}

// Half of the modes' losses are means, and the other half sums.
inline ModelParts parts_of(Mlp& net, bool mean) {
  return {.units = {&net.fc1, &net.fc2},
          .forward = [&net](const Tensors& in) { return Tensors{net(in[0])}; },
          .loss = [mean](const Tensors& out, const Tensors& targets) -> Loss {
            const double count = valid(targets[0]);
            Loss loss{cross_entropy(out[0], targets[0], {.reduction = Reduction::sum}), count, LossKind::sum};
            // Without targets the value is NaN, and its gradient too.
            if (mean) loss = {loss.value / targets[0].ne(-100).sum().to(DType::f64), count};
            const NoGradGuard no_grad;
            loss.sums = {out[0].argmax(1).eq(targets[0]).sum()};
            return loss;
          },
          .stages =
              [&net](const std::vector<Device>& devices) {
                std::vector<Stage> stages;
                const auto first = [&net](const Tensor& x) { return tanh(net.fc1(x)); };
                const auto second = [&net](const Tensor& x) { return net.fc3(tanh(net.fc2(x))); };
                stages.emplace_back(first, devices.at(0), Stage::Modules{net.fc1});
                stages.emplace_back(second, devices.at(1), Stage::Modules{net.fc2, net.fc3});
                return stages;
              }};
}

struct Trained {
  std::vector<double> losses, norms, right;
  nn::StateDict weights;
  double evaluated = 0, evaluated_right = 0;
};

// Trains 3 steps; the second adds its gradients to those of the first, which are not cleared.
inline Trained train(const std::string& text, const Group& world, int parts, bool mean) {
  std::vector<Device> devices{{DeviceType::cpu, 0}, {DeviceType::cpu, 1}};
  Strategy strategy(text, {.world = world, .devices = devices, .parts = parts});
  const auto net = make_mlp();
  strategy.wrap(*net, parts_of(*net, mean));
  const auto optimizer = make_optimizer<optim::AdamW>(strategy, net->parameters(), {.lr = 0.01});
  Trained result;
  for (int step = 0; step < 3; ++step) {
    if (step != 1) optimizer->zero_grad();
    const Batch all = whole_batch(step);
    const StepLoss own =
        strategy.gradients([&](const Part& part) { return narrowed(all, strategy.share(kSamples, part)); },
                           valid(all.targets[0]));
    const std::vector<double> sums = strategy.sum({own.loss.item(), own.sums[0].item()});
    result.losses.push_back(sums[0]);
    result.right.push_back(sums[1]);
    if (step == 0) continue;
    result.norms.push_back(strategy.clip_grad_norm_(0.05).item());
    optimizer->step();
  }
  // 11 samples in batches of 4: of two ranks, one has no batch in the second turn.
  const Batch all = whole_batch(7);
  int seen = 0;
  const auto evaluation = strategy.evaluate(
      (3 + strategy.data_size() - 1) / strategy.data_size(),
      [&](std::int64_t turn) {
        const std::int64_t mine = turn * strategy.data_size() + strategy.data_rank();
        Batch batch = narrowed(all, {std::min<std::int64_t>(mine, 2) * 4, mine < 2 ? 4 : 3});
        batch.counts = mine < 3;
        return batch;
      },
      {},
      [&](const Tensors& outputs, const Batch& batch) {
        seen += outputs[0].size(0) == batch.inputs[0].size(0);
      });
  require(strategy.sum({static_cast<double>(seen)})[0] == 3, "not every batch was seen");
  result.evaluated = evaluation->mean();
  result.evaluated_right = evaluation->sums[0];
  result.weights = strategy.whole_state();
  return result;
}

inline double distance(const nn::StateDict& a, const nn::StateDict& b) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    REQUIRE(a[i].first == b[i].first);
    most = std::max(most, (a[i].second - b[i].second).abs().max().item());
  }
  return most;
}

// The same in one process, without a strategy.
inline Trained expected_training() {
  const auto net = make_mlp();
  optim::AdamW optimizer(net->parameters(), {.lr = 0.01});
  Trained result;
  for (int step = 0; step < 3; ++step) {
    if (step != 1) optimizer.zero_grad();
    const Batch all = whole_batch(step);
    const Tensor scores = (*net)(all.inputs[0]), loss = cross_entropy(scores, all.targets[0]);
    loss.backward();
    result.losses.push_back(loss.item());
    result.right.push_back(scores.detach().argmax(1).eq(all.targets[0]).sum().item());
    if (step == 0) continue;
    result.norms.push_back(nn::clip_grad_norm_(net->parameters(), 0.05).item());
    optimizer.step();
  }
  const NoGradGuard no_grad;
  const Batch all = whole_batch(7);
  const Tensor scores = (*net)(all.inputs[0]);
  result.evaluated = cross_entropy(scores, all.targets[0]).item();
  result.evaluated_right = scores.argmax(1).eq(all.targets[0]).sum().item();
  result.weights = net->state_dict();
  return result;
}

inline void check_same(const Trained& a, const Trained& b, bool first_rank) {
  for (std::size_t i = 0; i < b.losses.size(); ++i) CHECK(a.losses[i] == Approx(b.losses[i]).epsilon(1e-12));
  for (std::size_t i = 0; i < b.norms.size(); ++i) CHECK(a.norms[i] == Approx(b.norms[i]).epsilon(1e-12));
  CHECK(a.right == b.right);
  CHECK(a.evaluated == Approx(b.evaluated).epsilon(1e-12));
  CHECK(a.evaluated_right == b.evaluated_right);
  if (first_rank) CHECK(distance(a.weights, b.weights) < 1e-11);
  else CHECK(a.weights.empty());
}
// The norm of the gradients of a step of 2 samples.
inline double norm(const std::string& text, const Group& world, int parts) {
  const std::vector<Device> devices{{DeviceType::cpu, 0}, {DeviceType::cpu, 1}};
  Strategy strategy(text, {.world = world, .devices = devices, .parts = parts});
  const auto net = make_mlp();
  strategy.wrap(*net, parts_of(*net, true));
  const Batch all = narrowed(whole_batch(0), {1, 2});
  strategy.gradients([&](const Part& part) { return narrowed(all, strategy.share(2, part)); }, 2);
  return strategy.clip_grad_norm_(1e9).item();
}

}  // namespace tapestry::strategy_net
