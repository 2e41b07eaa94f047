// Shards the replicas of a model in one process: each replica is a rank of a local group, and has a thread.
#include <thread>

#include "tapestry/distributed/fsdp/internal/shard_module.h"
#include "tests/distributed/fsdp_models.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace tapestry::test;

namespace {

constexpr int kReplicas = 3, kPasses = 6;

Tensor loss_of(TinyGpt& net, int step, int rank) {
  const auto [x, y] = formula_words(step, rank * 2, 2);
  return cross_entropy(net(x).reshape({-1, TinyGpt::kWords}), y.reshape({-1}));
}

std::vector<nn::Module*> units_of(TinyGpt& net) { return {&net.block0, &net.block1, &net.block2, &net}; }

// The full parameters, put together from the shards of all replicas.
StateDictCopy together(const TinyGpt& net) {
  StateDictCopy state;
  for (const auto& [name, slot] : net.named_parameters()) {
    std::vector<double>& values = state[name];
    for (int r = 0; r < slot.replicas(); ++r)
      for (const double v : to_vector(slot.replica(r))) values.push_back(v);
  }
  return state;
}

}  // namespace

TEST_CASE("replicas in one process train as ranks do, bit for bit") {
  const auto expected = on_ranks<StateDictCopy>(kReplicas, [](const Group& group) {
    TinyGpt net;
    fill_by_formula(net);
    std::optional<FullyShard> handle;
    for (nn::Module* m : units_of(net)) handle = fully_shard(*m, {.group = group});
    optim::AdamW optimizer(net.parameters(), {.lr = 0.01});
    for (int step = 0; step < kPasses; ++step) {
      optimizer.zero_grad();
      loss_of(net, step, group->rank()).backward();
      optimizer.step();
    }
    const auto full = handle->unshard(true);
    return copy_parameters(net);
  })[0];

  TinyGpt net;
  fill_by_formula(net);
  for (const nn::Parameter& slot : net.parameters()) {
    nn::Parameter handle = slot;
    std::vector<Tensor> replicas{slot.tensor()};
    for (int r = 1; r < kReplicas; ++r) replicas.push_back(slot.detach().clone().requires_grad_());
    handle.set_replicas(replicas);
  }
  const auto store = memory_store();
  Groups groups;
  for (const std::shared_ptr<Backend>& backend : local_backends(kReplicas))
    groups.push_back(make_process_group(backend, store, {.timeout = Milliseconds(20000)}));
  for (nn::Module* m : units_of(net)) shard_module(*m, {}, groups);
  optim::AdamW optimizer(net.parameters(), {.lr = 0.01});
  for (int step = 0; step < kPasses; ++step) {
    optimizer.zero_grad();
    std::vector<std::string> errors(kReplicas);
    std::vector<std::thread> threads;
    for (int r = 0; r < kReplicas; ++r)
      threads.emplace_back([&, r] {
        Context context;
        context.replica = static_cast<std::int16_t>(r);
        const ContextGuard guard(context);
        try {
          loss_of(net, step, r).backward();
        } catch (const std::exception& e) {
          errors[static_cast<std::size_t>(r)] = e.what();
          groups[static_cast<std::size_t>(r)]->abort(e.what());
        }
      });
    for (std::thread& thread : threads) thread.join();
    REQUIRE(errors == std::vector<std::string>(kReplicas));
    optimizer.step();
  }
  CHECK(together(net) == expected);
}
