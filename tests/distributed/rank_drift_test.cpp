// Ranks that train one model and no longer do the same are found while they train, on request, and before a
// checkpoint is written.
#include <filesystem>

#include "tapestry/tapestry.h"
#include "tests/distributed/models.h"
#include "tests/support/catch.h"
#include "tests/support/distributed.h"
#include "tests/support/files.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace tapestry::test;

namespace {

using distributed_test::Group, distributed_test::on_ranks;

enum class Mode { ddp, static_graph, fsdp, zero };

struct Two : nn::Module {
  nn::Linear& first = add<nn::Linear>("first", {.in_features = 3, .out_features = 4});
  nn::Linear& head = add<nn::Linear>("head", {.in_features = 4, .out_features = 2});  // 1 row on 2 of 3 ranks
  Tensor forward(const Tensor& x) override { return head(first(x).tanh()); }
};

// One rank that trains 20 steps. `change` is called before each step. Returns the first error and its step.
using Change = std::function<void(int step, int rank, Two& net, optim::Optimizer& optimizer)>;
std::string train(const Group& group, Mode mode, const Change& change,
                  const std::function<bool(int step, int rank)>& skips = {}) {
  Two net;
  fill_by_formula(net);
  std::optional<DistributedDataParallel<Two>> ddp;
  if (mode == Mode::fsdp) {
    fully_shard(net.first, {.group = group});
    fully_shard(net, {.group = group, .check_every = 4});
  } else {
    ddp.emplace(
        net,
        DdpOptions{.process_group = group, .static_graph = mode == Mode::static_graph, .check_every = 4});
  }
  std::unique_ptr<optim::Optimizer> optimizer;
  if (mode == Mode::zero)
    optimizer = std::make_unique<ZeroRedundancyOptimizer<optim::SGD>>(
        net.parameters(), ZeroOptions{.process_group = group}, optim::SGDOptions{.lr = 0.05});
  else optimizer = std::make_unique<optim::SGD>(net.parameters(), optim::SGDOptions{.lr = 0.05});
  for (int step = 0; step < 20; ++step) {
    optimizer->zero_grad();
    change(step, group->rank(), net, *optimizer);
    const Tensor x = full({2, 3}, 0.1 * (group->rank() + 1) + step);
    try {
      (ddp ? (*ddp)(x) : net(x)).square().sum().backward();
      if (!skips || !skips(step, group->rank())) optimizer->step();
    } catch (const ValueError& e) {
      return std::to_string(step) + " " + e.what();
    }
  }
  return "nothing";
}

void all_say(Mode mode, const std::vector<std::string>& expected, const Change& change,
             const std::function<bool(int step, int rank)>& skips = {}) {
  const auto texts = on_ranks<std::string>(3, [&](const Group& g) { return train(g, mode, change, skips); });
  for (const std::string& text : texts)
    for (const std::string& part : expected) {
      INFO("mode " << static_cast<int>(mode));
      CHECK_THAT(text, ContainsSubstring(part));
    }
}

const Change kNothing = [](int, int, Two&, optim::Optimizer&) {};

}  // namespace

TEST_CASE("every rank names the option, the rank and both values if one rank changes its optimizer") {
  for (const Mode mode : {Mode::ddp, Mode::static_graph, Mode::fsdp, Mode::zero}) {
    all_say(mode, {"nothing"}, kNothing);
    all_say(mode,
            {" the optimizers of the ranks differ:", "rank 0: SGD of first.weight and 3 more group 0 lr 0.05",
             "rank 2: SGD of first.weight and 3 more group 0 lr 0.5"},
            [](int step, int rank, Two&, optim::Optimizer& o) {
              if (step == 5 && rank == 2) o.set_lr(0.5);
            });
    all_say(mode, {"0 [", "group 0 momentum 0.9"}, [](int step, int rank, Two&, optim::Optimizer& o) {
      if (step == 0 && rank == 1) o.set_option(0, "momentum", 0.9);
    });
  }
}

TEST_CASE("every rank names the rank that skipped a step") {
  for (const Mode mode : {Mode::ddp, Mode::static_graph, Mode::fsdp})
    all_say(mode, {" the optimizers of the ranks differ:", "rank 1: SGD of first.weight and 3 more steps "},
            kNothing, [](int step, int rank) { return step == 2 && rank == 1; });
}

TEST_CASE("every rank names the shards that one rank changed alone") {
  const std::string text =
      "[fully_shard] the ranks changed first.weight differently since the last check: rank 0 ";
  all_say(Mode::fsdp, {text}, [](int step, int rank, Two& net, optim::Optimizer&) {
    if (step == 6 && rank == 0) net.first.weight->detach().mul_(2);
  });
  all_say(Mode::fsdp, {"0 " + text + "1 times, rank 1 0 times"},
          [](int step, int rank, Two& net, optim::Optimizer&) {
            if (step == 0 && rank == 0) net.first.load_state_dict(Two().first.state_dict());
          });
  // `head` has no rows on rank 2.
  all_say(Mode::fsdp, {"the ranks changed head.bias differently", "rank 0 0 times, rank 1 1 times"},
          [](int step, int rank, Two& net, optim::Optimizer&) {
            if (step == 0 && rank == 1) net.head.bias->detach().fill_(3);
          });
  all_say(Mode::static_graph, {"the ranks train different weights:\n  head.bias of rank 1 differs"},
          [](int step, int rank, Two& net, optim::Optimizer&) {
            if (step == 9 && rank == 1) net.head.bias->detach().fill_(3);
          });
}

TEST_CASE("weights that every rank initialised anew are found on request and before a checkpoint") {
  const tests::TempDir folder;
  const auto texts = on_ranks<std::string>(2, [&](const Group& group) {
    Two net;
    fill_by_formula(net);
    DistributedDataParallel ddp(net, {.process_group = group});
    optim::SGD optimizer(net.parameters(), {.lr = 0.05});
    Checkpointer checkpointer(folder / "whole", group);
    const auto step = [&] {
      optimizer.zero_grad();
      ddp(ones({1, 3})).sum().backward();
      optimizer.step();
    };
    step();
    check_ranks(group, net);
    checkpointer.save({&net, &optimizer}, {.step = 1});
    net.head.bias->detach().fill_(group->rank() + 1.0);  // as an init function with a seed of the rank
    step();                                              // both ranks changed it once
    std::string text;
    for (const auto& act :
         std::vector<std::function<void()>>{[&] { check_ranks(group, net); },
                                            [&] {
                                              checkpointer.save({&net, &optimizer}, {.step = 2});
                                            },
                                            [&] { save_sharded(folder / "parts", group, &net, {}); }}) {
      try {
        act();
      } catch (const ValueError& e) {
        text += e.what();
      }
    }
    const auto resumed = checkpointer.resume({&net, &optimizer});
    return text + (resumed ? std::to_string(resumed->step) : "none");
  });
  for (const std::string& text : texts) {
    const std::string why = "the ranks train different weights:\n  head.bias of rank 1 differs from rank 0's";
    CHECK_THAT(text, ContainsSubstring("[check_ranks] " + why));
    const std::string other = "head.bias has other values on rank 1 than on rank 0";
    CHECK_THAT(text, ContainsSubstring("[save_checkpoint] " + other));
    CHECK_THAT(text, ContainsSubstring("[save_sharded] " + other));
    CHECK(text.back() == '1');  // the older checkpoint is the last one
  }
  CHECK(!std::filesystem::exists(folder / "parts"));
}
