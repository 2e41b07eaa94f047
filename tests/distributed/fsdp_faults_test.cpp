// A rank that dies before a collective of fully_shard or ZeRO: every other rank must get an exception that
// names the unit and the parameters.
#include <thread>

#include "tests/distributed/fsdp_models.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace tapestry::test;

namespace {

constexpr int kRanks = 3, kDead = 1;

enum class At { never, forward, backward_gather, scatter, norm, step };

struct Dies {};

struct Net : nn::Module {
  nn::Linear& a = add<nn::Linear>("a", {.in_features = 4, .out_features = 5});
  nn::Linear& b = add<nn::Linear>("b", {.in_features = 5, .out_features = 5});
  nn::Linear& c = add<nn::Linear>("c", {.in_features = 5, .out_features = 2});
  std::function<void(At)> reach;
  Tensor forward(const Tensor& x) override {
    const Tensor h = a(x);
    watch(h, At::scatter);
    reach(At::forward);
    const Tensor g = b(h);
    watch(g, At::backward_gather);
    return c(g);
  }
  void watch(const Tensor& t, At at) {
    if (t.requires_grad())
      t.register_hook([this, at](const Tensor&) -> Tensor {
        reach(at);
        return {};
      });
  }
};

void train(const Group& group, At death, int zero_stage) {
  Net net;
  fill_by_formula(net);
  int step = 0;
  net.reach = [&, rank = group->rank()](At at) {
    if (rank == kDead && at == death && step == 1) throw Dies();
  };
  std::optional<DistributedDataParallel<Net>> ddp;
  std::unique_ptr<optim::Optimizer> optimizer;
  if (zero_stage > 0) {
    ddp.emplace(net, DdpOptions{.process_group = group});
    optimizer = std::make_unique<ZeroRedundancyOptimizer<optim::AdamW>>(
        net.parameters(), ZeroOptions{.process_group = group, .stage = zero_stage});
  } else {
    const FsdpOptions options{.group = group, .max_full_units = 1};
    for (nn::Module* m : std::vector<nn::Module*>{&net.a, &net.b, &net}) fully_shard(*m, options);
    optimizer = std::make_unique<optim::AdamW>(net.parameters());
  }
  for (; step < 3; ++step) {
    optimizer->zero_grad();
    const Tensor x = ones({2, 4});
    (ddp ? (*ddp)(x) : net(x)).sum().backward();
    net.reach(At::norm);
    nn::clip_grad_norm_(net.parameters(), 1);
    net.reach(At::step);
    optimizer->step();
  }
}

// The errors by rank. The dead rank leaves the group as its process would.
std::vector<std::string> errors(At death, int zero_stage = 0) {
  const auto store = memory_store();
  std::vector<Group> groups;
  for (const std::shared_ptr<Backend>& backend : local_backends(kRanks))
    groups.push_back(make_process_group(backend, store, {.timeout = Milliseconds(20000)}));
  std::vector<std::string> texts(kRanks);
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; ++r)
    threads.emplace_back([&, r, group = std::move(groups[static_cast<std::size_t>(r)])]() mutable {
      std::string& text = texts[static_cast<std::size_t>(r)];
      try {
        train(group, death, zero_stage);
      } catch (const Dies&) {
        text = "dead";
      } catch (const std::exception& e) {
        text = e.what();
      }
      group.reset();
    });
  for (std::thread& thread : threads) thread.join();
  return texts;
}

}  // namespace

TEST_CASE("a rank that dies at any collective of fully_shard is an error that names unit and parameter") {
  struct Expected {
    At at;
    std::vector<std::string> parts;
  };
  for (const Expected& e :
       std::vector<Expected>{{At::forward, {"all_gather", "fsdp b all_gather (weight, bias)"}},
                             {At::backward_gather, {"all_gather", "fsdp b all_gather (weight, bias)"}},
                             {At::scatter, {"reduce_scatter", "fsdp b reduce_scatter (weight, bias)"}},
                             {At::norm, {"all_reduce", "fsdp sum of a.weight"}},
                             {At::step, {"all_gather", "fsdp Net all_gather (c.weight, c.bias)"}}}) {
    const std::vector<std::string> texts = errors(e.at);
    for (int r = 0; r < kRanks; ++r) {
      const std::string& text = texts[static_cast<std::size_t>(r)];
      INFO("rank " << r << ": " << text);
      if (r == kDead) CHECK(text == "dead");
      else
        for (const std::string& part : e.parts) CHECK_THAT(text, ContainsSubstring(part));
    }
  }
  CHECK(errors(At::never) == std::vector<std::string>(kRanks));
}

TEST_CASE("a rank that dies at any collective of ZeRO is an error that names it and the bucket") {
  const auto part = [](int stage, At at) {
    if (at == At::scatter)
      return stage == 1 ? "all_reduce(bucket 0 (c.weight" : "reduce_scatter(bucket 0 (c.weight";
    return stage == 2 && at == At::norm ? "norms of gradients" : "options before a step";
  };
  for (const int stage : {1, 2})
    for (const At at : {At::scatter, At::norm, At::step}) {
      const std::vector<std::string> texts = errors(at, stage);
      for (int r = 0; r < kRanks; ++r) {
        const std::string& text = texts[static_cast<std::size_t>(r)];
        INFO("stage " << stage << ", at " << static_cast<int>(at) << ", rank " << r << ": " << text);
        if (r == kDead) CHECK(text == "dead");
        else CHECK_THAT(text, ContainsSubstring("rank 1 is gone") && ContainsSubstring(part(stage, at)));
      }
    }
}
