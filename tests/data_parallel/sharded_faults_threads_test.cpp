// A fault on one device of a ShardedDataParallel must throw an error that names the device, and training must
// go on afterwards. Bad arguments must throw before the model is changed.
#include <atomic>
#include <thread>

#include "tests/data_parallel/models.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace tapestry::test;

namespace {

enum class Fault { none, forward, backward, hook, memory, loss, between };

struct Block : nn::Module {
  nn::Linear& fc = add<nn::Linear>("fc", {.in_features = 8, .out_features = 8});
  Tensor forward(const Tensor& x) override { return x + fc(x).tanh(); }
};

// A module whose replica `bad` fails in the way that `fault` tells.
struct Faulty : nn::Module {
  nn::Linear& first = add<nn::Linear>("first", {.in_features = 4, .out_features = 8});
  Block& block0 = add<Block>("block0");
  Block& block1 = add<Block>("block1");
  Block& block2 = add<Block>("block2");
  nn::Linear& last = add<nn::Linear>("last", {.in_features = 8, .out_features = 2});
  Fault fault = Fault::none;
  int bad = 1;
  Tensor forward(const Tensor& x) override {
    Tensor h = block0(first(x).tanh());
    if (current_context().replica == bad) {
      if (fault == Fault::forward) fail("[user] as planned");
      if (fault == Fault::hook)
        h.register_hook([](const Tensor&) -> Tensor { throw std::out_of_range("planned in a hook"); });
      if (fault == Fault::memory) return empty({std::int64_t{1} << 50});
    }
    h = block1(h);
    if (current_context().replica == bad && fault == Fault::backward) h = BadBackward::apply(h);
    h = last(block2(h));
    if (current_context().replica == bad && fault == Fault::between) fail("[user] at the end");
    return h;
  }
};

void train(Faulty& net, optim::Optimizer& optimizer, ShardedDataParallel<Faulty>* sharded, int number) {
  const Tensor x = wave({7, 4}, number), target = wave({7, 2}, 2 * number);
  optimizer.zero_grad();
  if (!sharded) mse_loss(net(x), target).backward();
  else if (number % 2) mse_loss((*sharded)(x), target).backward();
  else
    sharded
        ->loss(std::tie(x, target),
               [&](const Tensor& a, const Tensor& b) {
                 if (net.fault == Fault::loss && current_context().replica == net.bad) throw 5;
                 return mse_loss(net(a), b);
               })
        .backward();
  optimizer.step();
}

}  // namespace

TEST_CASE("an error of one shard's device reaches the caller, and later training is not affected") {
  struct Expected {
    Fault fault;
    std::string text;
  };
  const std::vector<Expected> faults{{Fault::forward, "[user] as planned (in Faulty) (on cpu:"},
                                     {Fault::backward, "[bad_backward] as planned (on cpu:"},
                                     {Fault::hook, "planned in a hook (on cpu:"},
                                     {Fault::memory, "(on cpu:"},
                                     {Fault::between, "[user] at the end (in Faulty) (on cpu:"}};
  for (const int bad : {0, 2}) {
    Faulty net, alone;
    for (Faulty* m : {&net, &alone}) {
      m->to(DType::f64);
      fill_by_formula(*m);
      m->bad = bad;
    }
    ShardedDataParallel sharded(net, {0, 1, 2}, {.units = {&net.block0, &net.block1, &net.block2}});
    optim::SGD optimizer(net.parameters(), {.lr = 0.01}), reference(alone.parameters(), {.lr = 0.01});
    int number = 0;
    const auto go_on = [&] {
      for (int i = 0; i < 3; ++i, ++number) {
        train(net, optimizer, &sharded, number);
        train(alone, reference, nullptr, number);
      }
      StateDictCopy own;
      for (const auto& [name, tensor] : sharded.whole_state_dict()) own[name] = to_vector(tensor);
      CHECK(distance(own, copy_state(alone)) < 1e-13);
      for (int r = 0; r < 3; ++r)
        for (const FsdpUnitReport& u : sharded.report(r).units) CHECK_FALSE(u.is_full);
    };
    go_on();
    for (const Expected& e : faults)
      for (const int way : {0, 1}) {
        INFO(e.text << ", replica " << bad << ", way " << way);
        net.fault = e.fault;
        CHECK_THROWS_WITH(train(net, optimizer, &sharded, way),
                          ContainsSubstring(e.text + std::to_string(bad) + ")"));
        net.fault = Fault::none;
        go_on();
      }
    net.fault = Fault::loss;
    CHECK_THROWS_AS(train(net, optimizer, &sharded, 0), int);
    net.fault = Fault::none;
    go_on();

    // A graph from before the fault can still run backward.
    const Tensor x = wave({7, 4}, 1), target = wave({7, 2}, 1);
    optimizer.zero_grad();
    const Tensor loss = mse_loss(sharded(x), target);
    net.fault = Fault::forward;
    CHECK_THROWS(sharded(x));
    net.fault = Fault::none;
    loss.backward();
    reference.zero_grad();
    mse_loss(alone(x), target).backward();
    optimizer.step();
    reference.step();
    go_on();
  }
}

TEST_CASE("bad arguments of ShardedDataParallel throw and leave the model as it was") {
  Faulty net, other;
  const auto refuses = [&](const std::vector<Device>& devices, const ShardedDataParallelOptions& options,
                           const char* text) {
    INFO(text);
    CHECK_THROWS_WITH(ShardedDataParallel(net, devices, options), ContainsSubstring(text));
    for (const nn::Parameter& p : net.parameters()) {
      CHECK(p.replicas() == 1);
      CHECK_FALSE(p.layout());
    }
    CHECK(net(ones({2, 4})).sizes() == Shape{2, 2});
  };
  const std::vector<Device> two{"cpu:0", "cpu:1"};
  refuses({}, {}, "[ShardedDataParallel] there are no devices");
  refuses({"cpu:1", "cpu:1"}, {}, "cpu:1 is named twice");
  refuses({"cpu:1", "cpu:9"}, {}, "cpu:9");
  refuses(two, {.units = {nullptr}}, "a unit is null");
  refuses(two, {.units = {&net}}, "Faulty is the model itself");
  refuses(two, {.units = {&other.block0}}, "the unit Block is not inside Faulty");
  refuses(two, {.units = {&net.block0, &net.block0}}, "the unit block0 is named twice");
  refuses(two, {.max_full_units = 0}, "max_full_units is 0");
  refuses(two, {.backend = "gloo"}, "backend \"gloo\"");
  {
    const DataParallel dp(net, two);
    CHECK_THROWS_WITH(ShardedDataParallel(net, two), ContainsSubstring("has 2 replicas already"));
  }

  ShardedDataParallel sharded(net, two, {.units = {&net.block0}});
  CHECK_THROWS_WITH(ShardedDataParallel(net, two), ContainsSubstring("is sharded already"));
  CHECK_THROWS_WITH(DataParallel(net, two), ContainsSubstring("is sharded"));
  CHECK_THROWS_WITH(net(ones({2, 4})), ContainsSubstring("call the ShardedDataParallel or its loss()"));
  CHECK_THROWS_WITH(net.block0(ones({2, 8})), ContainsSubstring("was called by itself"));
  CHECK_THROWS_WITH(sharded.loss(3, [](int) { return ones({}); }), ContainsSubstring("[scatter]"));
  CHECK_THROWS_WITH(sharded.report(2), ContainsSubstring("replica 2"));
  CHECK_THROWS_WITH(sharded.loss(ones({4, 4}), [&](const Tensor& x) { return net(x); }),
                    ContainsSubstring("[ShardedDataParallel] the loss is float32 [2, 2]"));
  CHECK(sharded(ones({4, 4})).sizes() == Shape{4, 2});
}

TEST_CASE("after an exception at the end of forward, the devices agree on what they gather ahead") {
  struct Turns : nn::Module {
    Block& block0 = add<Block>("block0");
    Block& block1 = add<Block>("block1");
    Block& block2 = add<Block>("block2");
    bool backwards = false, fails = false;
    std::atomic<bool> second_is_done{false};
    Tensor forward(const Tensor& x) override {
      const Tensor y = backwards ? block0(block1(block2(x))) : block2(block1(block0(x)));
      if (!fails) return y;
      if (current_context().replica == 1) second_is_done = true;
      else {
        while (!second_is_done) std::this_thread::yield();
        fail("[user] at the end");
      }
      return y;
    }
  };
  Turns net, alone;
  for (Turns* m : {&net, &alone}) fill_by_formula(*m);
  alone.backwards = true;
  ShardedDataParallel sharded(net, {"cpu:0", "cpu:1"}, {.units = {&net.block0, &net.block1, &net.block2}});
  const Tensor x = ones({4, 8});
  sharded(x);
  net.backwards = net.fails = true;
  CHECK_THROWS_WITH(sharded(x), ContainsSubstring("at the end"));
  net.fails = false;
  // The blocks have equal shapes, so gathers of different blocks would give wrong values without an error.
  for (int i = 0; i < 2; ++i) CHECK(allclose(sharded(x), alone(x), 1e-5, 1e-6));
}

TEST_CASE("devices that call different units get an error, not another unit's values") {
  struct Either : nn::Module {
    Block& block0 = add<Block>("block0");
    Block& block1 = add<Block>("block1");
    Tensor forward(const Tensor& x) override { return x.sum().item() > 0 ? block0(x) : block1(x); }
  };
  Either net;
  ShardedDataParallel sharded(net, {"cpu:0", "cpu:1"}, {.units = {&net.block0, &net.block1}});
  const Tensor x = ones({4, 8}), mixed = cat({ones({2, 8}), full({2, 8}, -1.0)});
  sharded(x);
  CHECK_THROWS_WITH(sharded(mixed),
                    ContainsSubstring("not in the same call") && ContainsSubstring("fsdp block1 all_gather"));
  CHECK(sharded(x).sizes() == Shape{4, 8});
}
