// Tests pipelines whose ranks are processes that communicate through Gloo.
#include <signal.h>

#include "tapestry/tapestry.h"
#include "tests/pipeline/rank_models.h"
#include "tests/support/catch.h"
#include "tests/support/distributed.h"
#include "tests/support/processes.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace tapestry::test;
using namespace distributed_test;

namespace {

Group make_group(const ChildRank& self) {
  return make_process_group(gloo_backend(self.store, self.rank, self.size, 30s),
                            prefix_store("group/", self.store), {.timeout = Milliseconds(30'000)});
}

constexpr int kSteps = 5;

}  // namespace

TEST_CASE("child that trains a stage", "[.]") {
  const ChildRank self = child_rank();
  const Group group = make_group(self);
  Chain whole;
  Chain chain = Chain::stage(self.rank, self.size);
  for (const Schedule schedule : {Schedule::gpipe, Schedule::one_f_one_b, Schedule::zero_bubble}) {
    Pipeline pipeline(group, {chain.modules(), kCPU},
                      {.schedule = schedule, .micro_batches = 4, .uneven = true});
    optim::SGD optimizer(pipeline.parameters(), {.lr = 0.1, .momentum = 0.9});
    optim::SGD single(whole.parameters(), {.lr = 0.1, .momentum = 0.9});
    for (int step = 0; step < kSteps; ++step) {
      const auto [x, labels] = chain_batch(step, step == 3 ? 5 : 16);
      optimizer.zero_grad();
      single.zero_grad();
      const Tensor expected = chain_loss(whole(x), labels);
      expected.backward();
      const double loss = pipeline.forward_backward(x, labels, chain_loss).item();
      CHECK(std::abs(loss - expected.item()) < 1e-10);
      pipeline.clip_grad_norm_(0.3);
      nn::clip_grad_norm_(whole.parameters(), 0.3);
      optimizer.step();
      single.step();
      const Tensor scores = pipeline(x);
      CHECK(scores.defined() == (self.rank + 1 == self.size));
      if (scores.defined()) CHECK(scores.allclose(whole(x).detach(), 0, 1e-10));
    }
  }
  const auto mine = values_of(chain.parameters()), all = values_of(whole.parameters());
  const auto begin = self.rank == 0 ? all.begin() : all.end() - static_cast<std::ptrdiff_t>(mine.size());
  CHECK(apart(mine, Numbers(begin, begin + static_cast<std::ptrdiff_t>(mine.size()))) < 1e-10);
}

TEST_CASE("a pipeline over processes trains like the unsplit model in one process") {
  if (!has_gloo()) return;
  for (const char* shared : {"1", "0"}) {
    RankProcesses ranks("child that trains a stage", 2, {{"TAPESTRY_SHARED_MEMORY", shared}});
    for (int r = 0; r < 2; ++r) {
      const Ended& end = ranks.wait(r);
      CAPTURE(r, shared, end.output, end.signal);
      CHECK(end.well());
    }
  }
}

TEST_CASE("child whose stage fails", "[.]") {
  const ChildRank self = child_rank();
  const Group group = make_group(self);
  Chain chain = Chain::stage(self.rank, self.size);
  int calls = 0;
  const Stage stage(
      [&](const Tensor& x) {
        if (self.rank == 1 && ++calls == 6) throw std::runtime_error("boom");
        return chain(x);
      },
      kCPU, chain.modules());
  Pipeline pipeline(group, stage, {.micro_batches = 4});
  std::string error;
  for (int step = 0; step < 10 && error.empty(); ++step) {
    const auto [x, labels] = chain_batch(step, 8);
    try {
      pipeline.forward_backward(x, labels, chain_loss);
    } catch (const std::exception& e) {
      error = e.what();
    }
  }
  CHECK_THAT(error,
             ContainsSubstring("boom") && ContainsSubstring("stage 1, Part, forward of micro-batch 1"));
}

TEST_CASE("if a stage throws, the other process throws an error that names the rank") {
  if (!has_gloo()) return;
  const auto begin = std::chrono::steady_clock::now();
  RankProcesses ranks("child whose stage fails", 2);
  for (const int r : {1, 0}) {
    const Ended& end = ranks.wait(r);
    CAPTURE(r, end.output);
    CHECK(end.well());
  }
  CHECK(std::chrono::steady_clock::now() - begin < 25s);  // sooner than the timeout
}

namespace {

struct Net : nn::Module {
  nn::Linear& fc0 = add<nn::Linear>("fc0", {.in_features = 5, .out_features = 6});
  nn::Linear& fc1 = add<nn::Linear>("fc1", {.in_features = 6, .out_features = 7});
  nn::Linear& fc2 = add<nn::Linear>("fc2", {.in_features = 7, .out_features = 4});
  Tensor forward(const Tensor& x) override { return fc2(tanh(fc1(tanh(fc0(x))))); }
};

constexpr const char* kPhases[] = {"forward", "backward", "loss", "clip", "state", "evaluation"};
// The rank that is killed: in the middle, or where the loss is.
int killed_in(const std::string& phase) { return phase == "loss" ? 2 : 1; }

}  // namespace

TEST_CASE("child that is killed in a step of a strategy", "[.]") {
  using Tensors = std::vector<Tensor>;
  const ChildRank self = child_rank();
  const Group group = make_group(self);
  const std::string phase = std::getenv("TEST_PHASE");
  int step = 0;
  const auto reached = [&](const char* here) {
    if (step == 1 && self.rank == killed_in(phase) && phase == here) raise(SIGKILL);
  };
  Strategy strategy("pipeline=3", {.world = group, .parts = 4});
  Net net;
  const auto middle = [&](const Tensor& x) {
    reached(grad_enabled() ? "forward" : "evaluation");
    const Tensor y = tanh(net.fc1(x));
    if (grad_enabled())
      y.register_hook([&](const Tensor& g) {
        reached("backward");
        return g;
      });
    return y;
  };
  strategy.wrap(
      net, {.forward = [&](const Tensors& in) { return Tensors{net(in[0])}; },
            .loss = [&](const Tensors& out, const Tensors& targets) -> Loss {
              reached("loss");
              return {mse_loss(out[0], targets[0]), static_cast<double>(targets[0].size(0))};
            },
            .stages =
                [&](const std::vector<Device>& on) {
                  return std::vector<Stage>{{net.fc0, on[0]}, {middle, on[1], {net.fc1}}, {net.fc2, on[2]}};
                }});
  optim::SGD optimizer(net.parameters(), {.lr = 0.1});
  const auto read = [](const auto&) { return Batch{{ones({8, 5})}, {ones({8, 4})}}; };
  std::string error;
  try {
    for (; step < 3; ++step) {
      optimizer.zero_grad();
      strategy.gradients(read, 8);
      reached("clip");
      strategy.clip_grad_norm_(1);
      optimizer.step();
      reached("state");
      strategy.whole_state();
      strategy.evaluate(1, read);
    }
  } catch (const DistributedError& e) {
    error = e.what();
  }
  CHECK_THAT(error, ContainsSubstring(concat({"rank ", killed_in(phase)})) && ContainsSubstring("pipeline"));
}

TEST_CASE("a rank that is killed in any phase of a step of a strategy is named by the others") {
  if (!has_gloo()) return;
  const auto begin = std::chrono::steady_clock::now();
  // All jobs run at the same time, because they mostly wait.
  std::vector<std::unique_ptr<RankProcesses>> jobs;
  for (const char* phase : kPhases)
    jobs.push_back(std::make_unique<RankProcesses>("child that is killed in a step of a strategy", 3,
                                                   RankProcesses::Variables{{"TEST_PHASE", phase}}));
  for (std::size_t i = 0; i < jobs.size(); ++i)
    for (int r = 0; r < 3; ++r) {
      const Ended& end = jobs[i]->wait(r);
      CAPTURE(kPhases[i], r, end.signal, end.output);
      if (r == killed_in(kPhases[i])) CHECK(end.signal == SIGKILL);
      else CHECK(end.well());
    }
  CHECK(std::chrono::steady_clock::now() - begin < 25s);  // sooner than the timeout
}
