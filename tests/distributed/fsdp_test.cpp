// Tests fully_shard with ranks as threads: it must train exactly as DistributedDataParallel does.
#include <tuple>

#include "tests/distributed/fsdp_models.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace tapestry::test;

namespace {

struct Variant {
  std::string name;
  Training training;
  int ranks = 2;
};

std::vector<Variant> variants() {
  std::vector<Variant> list{
      {"defaults", {}},
      {"nothing gathered ahead", {.options = {.max_full_units = 1}}},
      {"kept full", {.options = {.reshard_after_forward = false}}, 3},
      {"four full units", {.options = {.max_full_units = 4}}, 3},
      {"model resharded too", {.options = {.reshard_after_forward = true}}, 4},
      {"units in units", {.nested = true}, 4},
      {"accumulation", {.accumulate = 3}},
      {"checkpointing", {.checkpointed = true}, 3},
      {"a frozen block", {.frozen = 1}, 3},
      {"frozen embeddings", {.frozen = 2}},
      {"SGD", {.adamw = false}, 4},
  };
  if (kSanitized) list.resize(8), list.erase(list.begin());  // pairs of options are below
  for (std::size_t i = kSanitized ? 0 : 2; i < list.size(); ++i) list[i].training.steps = kSanitized ? 3 : 12;
  return list;
}

void compare(const Trained& a, const Trained& b, const std::string& what) {
  INFO(what);
  CHECK(a.losses == b.losses);
  CHECK(a.weights == b.weights);
}

}  // namespace

TEST_CASE("sharded ranks train as replicated ranks do, bit for bit") {
  // What DDP trains, by the options that it knows.
  std::map<std::tuple<int, bool, int, bool, int>, std::vector<Trained>> by_ddp;
  for (const Variant& v : variants()) {
    const Training& t = v.training;
    std::vector<Trained>& expected = by_ddp[{v.ranks, t.adamw, t.accumulate, t.checkpointed, t.frozen}];
    if (expected.empty())
      expected =
          on_ranks<Trained>(v.ranks, [&](const Group& g) { return train_gpt(Parallel::ddp, g, v.ranks, t); });
    const auto sharded =
        on_ranks<Trained>(v.ranks, [&](const Group& g) { return train_gpt(Parallel::fsdp, g, v.ranks, t); });
    for (std::size_t r = 0; r < expected.size(); ++r)
      compare(sharded[r], expected[r], concat({v.name, ", rank ", r, " of ", v.ranks}));
    if (!kSanitized) CHECK(expected[0].losses.back() < expected[0].losses.front());
  }
}

TEST_CASE("pairs of options give the same bits") {
  std::vector<Variant> list;
  for (const std::optional<bool> reshard : {std::optional<bool>(true), std::optional<bool>(false)})
    for (const int limit : {1, 3})
      for (const bool checkpointed : {false, true})
        for (const int other : {0, 1, 2}) {
          // These six have all pairs of two options.
          const bool is_pair =
              (limit == 3) == (*reshard == (other == 1)) && checkpointed == (*reshard == (other != 0));
          if (kSanitized && !is_pair) continue;
          Training t{.options = {.reshard_after_forward = reshard, .max_full_units = limit},
                     .adamw = other != 0,
                     .accumulate = other == 1 ? 2 : 1,
                     .checkpointed = checkpointed,
                     .nested = other != 1,
                     .frozen = other,
                     .steps = 3};
          list.push_back({concat({*reshard ? "resharded" : "kept", ", limit ", limit, ", checkpointed ",
                                  checkpointed, ", variant ", other}),
                          t});
        }
  for (const int other : {0, 1, 2}) {
    std::optional<std::vector<Trained>> expected;
    for (const Variant& v : list) {
      if (v.training.frozen != other) continue;
      if (!expected)
        expected =
            on_ranks<Trained>(3, [&](const Group& g) { return train_gpt(Parallel::ddp, g, 3, v.training); });
      const auto sharded =
          on_ranks<Trained>(3, [&](const Group& g) { return train_gpt(Parallel::fsdp, g, 3, v.training); });
      for (std::size_t r = 0; r < 3; ++r) compare(sharded[r], (*expected)[r], concat({v.name, ", rank ", r}));
    }
  }
}

TEST_CASE("sharded ranks train on every transport") {
  for (const distributed_test::Transport& transport : distributed_test::transports()) {
    INFO(transport.name);
    const Training t{.steps = kSanitized ? 3 : transport.name == "gloo" ? 12 : 5};  // through shared memory
    std::vector<Trained> expected(3), sharded(3);
    for (const Parallel how : {Parallel::ddp, Parallel::fsdp})
      distributed_test::run_ranks_well(
          transport, 3,
          [&](const Group& g) {
            (how == Parallel::ddp ? expected : sharded)[static_cast<std::size_t>(g->rank())] =
                train_gpt(how, g, 3, t);
          },
          distributed_test::kBounded);
    for (std::size_t r = 0; r < 3; ++r) {
      if (transport.name == "gloo, messages only")
        CHECK(distance(sharded[r].weights, expected[r].weights) < 1e-4);
      else compare(sharded[r], expected[r], concat({"rank ", r}));
    }
  }
}

TEST_CASE("convolutions and batch statistics over the ranks give the same bits") {
  for (const bool adamw : {true, false}) {
    if (kSanitized && !adamw) continue;
    const Training t{.adamw = adamw, .steps = kSteps / 2};
    const auto expected =
        on_ranks<Trained>(3, [&](const Group& g) { return train_cnn(Parallel::ddp, g, 3, t); });
    const auto sharded =
        on_ranks<Trained>(3, [&](const Group& g) { return train_cnn(Parallel::fsdp, g, 3, t); });
    for (std::size_t r = 0; r < 3; ++r) compare(sharded[r], expected[r], concat({"rank ", r}));
  }
}

TEST_CASE("a convolution in the channels-last format is sharded by rows too") {
  const auto train = [](bool sharded) {
    return on_ranks<StateDictCopy>(2, [&](const Group& g) {
      nn::Conv2d net({.in_channels = 3, .out_channels = 5, .kernel_size = 2});
      fill_by_formula(net);
      net.to(MemoryFormat::channels_last);
      std::optional<FullyShard> fsdp;
      std::unique_ptr<DistributedDataParallel<nn::Conv2d>> ddp;
      if (sharded) fsdp = fully_shard(net, {.group = g});
      else ddp = std::make_unique<DistributedDataParallel<nn::Conv2d>>(net, DdpOptions{.process_group = g});
      optim::AdamW optimizer(net.parameters(), {.lr = 0.01});
      for (int i = 0; i < 3; ++i) {
        optimizer.zero_grad();
        const Tensor x = full({1, 3, 4, 4}, 0.1 * (i + g->rank())).contiguous(MemoryFormat::channels_last);
        (ddp ? (*ddp)(x) : net(x)).square().sum().backward();
        optimizer.step();
      }
      if (!fsdp) return copy_parameters(net);
      const auto full = fsdp->unshard();
      return copy_parameters(net);
    });
  };
  CHECK(train(true) == train(false));
}
