// Misuse of fully_shard is an error on every rank, with the path of the module or parameter. Ranks that fail
// or disappear leave no rank waiting.
#include <mutex>
#include <stdexcept>

#include "tests/distributed/fsdp_models.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace tapestry::test;

namespace {

using distributed_test::require;

struct EndOfRank {};

struct TwoLayers : nn::Module {
  nn::Linear& a = add<nn::Linear>("a", {.in_features = 3, .out_features = 4});
  nn::Linear& b = add<nn::Linear>("b", {.in_features = 4, .out_features = 2});
  bool steal = false;  // forward reads a's weight after a has computed
  Tensor forward(const Tensor& x) override {
    const Tensor y = b(a(x));
    return steal ? y + a.weight.sum() : y;
  }
};

// The text of the error that fn throws on each rank; empty if it throws none.
std::vector<std::string> errors(int ranks, const std::function<void(const Group&)>& fn) {
  return on_ranks<std::string>(ranks, [&](const Group& group) -> std::string {
    std::string text;
    try {
      fn(group);
    } catch (const Error& e) {
      text = e.what();
    }
    // Ranks must not leave while others read their error.
    try {
      group->barrier().wait(Milliseconds(5000));
    } catch (const Error&) {
    }
    return text;
  });
}

void check_all(const std::vector<std::string>& texts, const std::vector<std::string>& parts) {
  for (const std::string& text : texts)
    for (const std::string& part : parts) {
      INFO(text);
      CHECK(text.find(part) != std::string::npos);
    }
}

}  // namespace

TEST_CASE("wrong arguments of fully_shard are errors on every rank") {
  check_all(errors(2,
                   [](const Group&) {
                     TwoLayers net;
                     fully_shard(net, {});
                   }),
            {"group is null"});
  check_all(errors(2,
                   [](const Group& g) {
                     TwoLayers net;
                     fully_shard(net.a, {.group = g});
                     fully_shard(net.a, {.group = g});
                   }),
            {"[fully_shard]", "Linear is sharded already"});
  check_all(errors(2,
                   [](const Group& g) {
                     TwoLayers net;
                     fully_shard(net, {.group = g});
                     fully_shard(net.a, {.group = g});
                   }),
            {"weight belongs to TwoLayers", "inside first"});
  check_all(errors(2,
                   [](const Group& g) {
                     TwoLayers net;
                     fully_shard(net, {.group = g, .max_full_units = 0});
                   }),
            {"max_full_units is 0"});
  check_all(errors(2,
                   [](const Group& g) {
                     TwoLayers net;
                     const DistributedDataParallel<TwoLayers> ddp(net, {.process_group = g});
                     fully_shard(net, {.group = g});
                   }),
            {"a.weight", "DistributedDataParallel"});
}

TEST_CASE("ranks that shard differently get an error on every rank") {
  // one rank alone makes a mistake
  check_all(errors(3,
                   [](const Group& g) {
                     TwoLayers net;
                     if (g->rank() == 1) net.a.param("extra", ones({2}));
                     fully_shard(net, {.group = g});
                   }),
            {"not the same on all ranks", "a.extra"});
  check_all(errors(2,
                   [](const Group& g) {
                     TwoLayers net;
                     fully_shard(net, {.group = g, .max_full_units = g->rank() == 0 ? 2 : 0});
                   }),
            {"max_full_units is 0"});
  check_all(errors(2,
                   [](const Group& g) {
                     TwoLayers net;
                     fully_shard(net, {.group = g, .reshard_after_forward = g->rank() == 0});
                   }),
            {"reshard_after_forward"});
  check_all(errors(2,
                   [](const Group& g) {
                     TwoLayers net;
                     fully_shard(g->rank() == 0 ? net.a : net.b, {.group = g});
                   }),
            {"module a", "module b"});
  check_all(errors(2,
                   [](const Group& g) {
                     TwoLayers net;
                     if (g->rank() == 0) fully_shard(net.a, {.group = g});
                     fully_shard(net, {.group = g});
                   }),
            {"a"});
}

TEST_CASE("a parameter that is read while it is sharded is an error with its path") {
  for (const bool grad : {true, false}) {
    INFO((grad ? "with" : "without") << " gradients");
    const auto mode = [grad] { return tapestry::detail::GradModeGuard(grad, false); };
    // in forward of another module
    check_all(errors(2,
                     [&](const Group& g) {
                       const auto guard = mode();
                       TwoLayers net;
                       for (nn::Module* m : std::vector<nn::Module*>{&net.a, &net.b, &net})
                         fully_shard(*m, {.group = g});
                       net.steal = true;
                       net(ones({2, 3}));
                     }),
              {"a.weight is sharded now", "unit a", "TwoLayers"});
    // a layer of a unit that is called without the unit
    check_all(errors(2,
                     [&](const Group& g) {
                       const auto guard = mode();
                       TwoLayers net;
                       fully_shard(net, {.group = g});
                       net.a(ones({2, 3}));
                     }),
              {"a.weight is sharded now", "unit TwoLayers"});
    // a full tensor that was kept
    check_all(errors(2,
                     [&](const Group& g) {
                       const auto guard = mode();
                       TwoLayers net;
                       fully_shard(net.a, {.group = g});
                       const FullyShard handle = fully_shard(net, {.group = g});
                       Tensor kept;
                       net.a.register_forward_hook(
                           [&](nn::Module&, const auto&, std::vector<Tensor>&) { kept = net.a.weight; });
                       net(ones({2, 3}));
                       require(kept.numel() == 12, "not full");
                       kept.square();
                     }),
              {"a.weight is sharded now", "no elements"});
  }
  // an operation on a shard, outside of forward
  check_all(errors(2,
                   [](const Group& g) {
                     TwoLayers net;
                     fully_shard(net, {.group = g});
                     net.b.weight.square();
                   }),
            {"[", "b.weight is sharded now", "unit TwoLayers"});
  // reading it is fine
  on_ranks<int>(2, [](const Group& g) {
    TwoLayers net;
    fully_shard(net, {.group = g});
    const NoGradGuard no_grad;
    require(net.b.weight.square().numel() == 4, "reading a shard failed");
    return 0;
  });
}

TEST_CASE("a model that changes after it was sharded is an error") {
  check_all(errors(2,
                   [](const Group& g) {
                     TwoLayers net;
                     fully_shard(net, {.group = g});
                     net.a.param("late", ones({2}));
                     net(ones({2, 3}));
                   }),
            {"a.late was added"});
  check_all(errors(2,
                   [](const Group& g) {
                     TwoLayers net;
                     fully_shard(net, {.group = g});
                     net.a.weight.set_replica(0, zeros({7, 3}));
                   }),
            {"a.weight has shape", "shard of shape"});
  // between forward and backward: backward gathers other values than forward used
  for (const int ranks : {2, 4})
    check_all(errors(ranks,
                     [](const Group& g) {
                       TwoLayers net;
                       for (nn::Module* m : std::vector<nn::Module*>{&net.a, &net.b, &net})
                         fully_shard(*m, {.group = g});
                       optim::AdamW optimizer(net.parameters(), {.lr = 0.1});
                       net(ones({2, 3})).sum().backward();
                       const Tensor loss = net(ones({2, 3})).sum();
                       optimizer.step();
                       loss.backward();
                     }),
              {"changed in place"});
  check_all(errors(2,
                   [](const Group& g) {
                     TwoLayers net;
                     fully_shard(net.a, {.group = g});
                     fully_shard(net.b, {.group = g});
                     fully_shard(net, {.group = g});
                     const Tensor loss = net(ones({2, 3})).sum();
                     {
                       const NoGradGuard no_grad;
                       net.b.weight.mul_(2);
                     }
                     net(ones({2, 3}));  // gathers the new values
                     loss.backward();
                   }),
            {"changed in place"});
}

TEST_CASE("moving a sharded model to another dtype keeps it sharded") {
  on_ranks<int>(2, [](const Group& g) {
    TwoLayers net;
    fully_shard(net.a, {.group = g});
    fully_shard(net, {.group = g});
    net.to(DType::f64);
    require(net.a.weight.dtype() == DType::f64, "not converted");
    net(ones({2, 3}, {DType::f64})).sum().backward();
    require(net.a.weight.grad().dtype() == DType::f64 && net.a.weight.grad().size(0) == 2, "wrong gradient");
    return 0;
  });
}

TEST_CASE("a rank that throws or leaves is named with unit and parameter") {
  // Where rank 1 stops: in forward, so that the others wait in a gather, or in backward, in a reduce-scatter.
  for (const std::string where : {"forward", "backward"})
    for (const bool throws : {true, false}) {
      INFO(where << (throws ? ", exception" : ", silent"));
      std::mutex mutex;
      std::vector<std::string> texts;
      const auto run = [&](const Group& group) {
        TwoLayers net;
        fully_shard(net.a, {.group = group});
        fully_shard(net.b, {.group = group});
        fully_shard(net, {.group = group});
        const auto stop = [&] {
          if (group->rank() != 1) return;
          if (throws) throw std::runtime_error("rank 1 stops here");
          throw EndOfRank();
        };
        if (where == "forward")
          net.a.register_forward_hook([&](nn::Module&, const auto&, std::vector<Tensor>&) { stop(); });
        else
          net.a.register_forward_hook([&](nn::Module&, const auto&, std::vector<Tensor>& out) {
            out[0].register_hook([&](const Tensor&) -> Tensor { return stop(), Tensor(); });
          });
        try {
          net(ones({2, 3})).sum().backward();
        } catch (const Error& e) {
          const std::lock_guard lock(mutex);
          texts.push_back(e.what());
          throw;
        } catch (const EndOfRank&) {
        }
      };
      CHECK_THROWS(run_local_ranks(3, run, {.timeout = Milliseconds(2000)}));
      REQUIRE(texts.size() == 2);
      for (const std::string& text : texts) {
        INFO(text);
        CHECK(text.find(where == "forward" ? "fsdp b all_gather (weight, bias)"
                                           : "fsdp b reduce_scatter (weight, bias)") != std::string::npos);
      }
    }
}
