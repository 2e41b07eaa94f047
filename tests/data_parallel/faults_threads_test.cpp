// A fault on one device must throw an error that names the device, and training must go on afterwards.
#include "tests/data_parallel/models.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace tapestry::test;

namespace {

enum class Fault { none, forward, backward, hook, memory, shape, unknown };

// A module whose replica `bad` fails in the way that `fault` tells.
struct Faulty : nn::Module {
  nn::Linear& first = add<nn::Linear>("first", {.in_features = 4, .out_features = 300});
  nn::Linear& second = add<nn::Linear>("second", {.in_features = 300, .out_features = 2});
  Fault fault = Fault::none;
  int bad = 1;
  Tensor forward(const Tensor& x) override {
    Tensor h = first(x).tanh();
    if (current_context().replica == bad) {
      if (fault == Fault::forward) fail("[user] as planned");
      if (fault == Fault::backward) h = BadBackward::apply(h);
      if (fault == Fault::hook)
        h.register_hook([](const Tensor&) -> Tensor { throw std::out_of_range("planned in a hook"); });
      if (fault == Fault::memory) return empty({std::int64_t{1} << 50});
      if (fault == Fault::shape) h = h.narrow(1, 0, 200);
      if (fault == Fault::unknown) throw 5;
    }
    return second(h);
  }
};

void train(Faulty& net, optim::Optimizer& optimizer, DataParallel<Faulty>* dp, int number) {
  const Tensor x = wave({7, 4}, number), target = wave({7, 2}, 2 * number);
  optimizer.zero_grad();
  if (!dp) mse_loss(net(x), target).backward();
  else if (number % 2) mse_loss((*dp)(x), target).backward();
  else
    dp->loss(std::tie(x, target), [&](const Tensor& a, const Tensor& b) {
        return mse_loss(net(a), b);
      }).backward();
  optimizer.step();
}

}  // namespace

TEST_CASE("an error names the device of the fault, and later training is not affected") {
  struct Expected {
    Fault fault;
    std::string text;
  };
  const std::vector<Expected> faults{
      {Fault::forward, "[user] as planned (in Faulty) (on cpu:"},
      {Fault::backward, "[bad_backward] as planned (on cpu:"},
      {Fault::hook, "planned in a hook (on cpu:"},
      {Fault::memory, "(on cpu:"},
      {Fault::shape, "(in second: Linear(in_features=300, out_features=2, bias=true)) (on cpu:"}};
  for (const DataParallelMode strategy : {DataParallelMode::replicated, DataParallelMode::master})
    for (const int bad : {0, 2}) {
      Faulty net, alone;
      for (Faulty* m : {&net, &alone}) {
        m->to(DType::f64);
        fill_by_formula(*m);
        m->bad = bad;
      }
      DataParallel dp(net, {0, 1, 2}, {.mode = strategy, .bucket_cap_mb = 1e-3, .first_bucket_mb = 1e-3});
      // A learning rate of 0.1 is too high for this model: differences in the last bit grow from step to
      // step.
      optim::SGD optimizer(net.parameters(), {.lr = 0.01}), reference(alone.parameters(), {.lr = 0.01});
      int number = 0;
      const auto go_on = [&] {
        for (int i = 0; i < 3; ++i, ++number) {
          train(net, optimizer, &dp, number);
          train(alone, reference, nullptr, number);
        }
        CHECK(distance(copy_state(net), copy_state(alone)) < 1e-13);
      };
      go_on();
      for (const Expected& e : faults)
        for (const int which : {0, 1}) {
          INFO(e.text << bad << (strategy == DataParallelMode::master ? ", master" : ", replicated"));
          net.fault = e.fault;
          CHECK_THROWS_WITH(train(net, optimizer, &dp, which),
                            ContainsSubstring(e.text + std::to_string(bad) + ")"));
          net.fault = Fault::none;
          go_on();
        }
      net.fault = Fault::memory;
      CHECK_THROWS_AS(dp(wave({7, 4}, 0)), OutOfMemoryError);
      net.fault = Fault::unknown;
      CHECK_THROWS_AS(dp(wave({7, 4}, 0)), int);
      net.fault = Fault::none;
      go_on();
      CHECK_THROWS_WITH(dp(wave({7, 5}, 0)), ContainsSubstring("(in first: Linear"));
      CHECK_THROWS_WITH(dp.loss(std::pair(wave({7, 4}, 0), wave({6, 2}, 0)),
                                [&](const Tensor& x, const Tensor& y) { return mse_loss(net(x), y); }),
                        ContainsSubstring("tensors of 7 and 6 samples"));
      CHECK_THROWS_WITH(dp.loss(wave({7, 4}, 0), [&](const Tensor& x) { return dp(x).sum(); }),
                        ContainsSubstring("replicas cannot be nested"));
      go_on();
    }
}

TEST_CASE("a model cannot be moved, and backward works, only while its DataParallel exists") {
  Faulty net;
  net.to(DType::f64);
  Tensor late;
  {
    DataParallel dp(net, {0, 1});
    CHECK_THROWS_WITH(net.to("cpu:2"), ContainsSubstring("has 2 replicas"));
    late = dp(wave({4, 4}, 0)).sum();
  }
  CHECK_THROWS_WITH(late.backward(), ContainsSubstring("keep the DataParallel until backward has run"));
  net.to("cpu:2");
  CHECK(net(wave({4, 4}, 0).to("cpu:2")).device() == Device("cpu:2"));
  // Under the master strategy, backward must work after the DataParallel was destroyed.
  {
    DataParallel dp(net, {0, 1}, {.mode = DataParallelMode::master});
    late = dp(wave({4, 4}, 0)).sum();
  }
  late.backward();
  CHECK(net.first.weight->grad().defined());
}

TEST_CASE("DataParallel and DistributedDataParallel refuse to share a model") {
  run_local_ranks(2, [](const std::shared_ptr<ProcessGroup>& group) {
    const auto refused = [&](const auto& attempt, const char* text) {
      try {
        attempt();
      } catch (const ValueError& e) {
        return check(std::string(e.what()).find(text) != std::string::npos, "another message: ", e.what());
      }
      fail("no error: ", text);
    };
    const DeviceList devices = group->rank() ? DeviceList{2, 3} : DeviceList{0, 1};
    const auto share = [&](Faulty& net) { DistributedDataParallel ddp(net, {.process_group = group}); };
    Faulty net;
    {
      DataParallel dp(net, devices);
      refused([&] { share(net); }, "'first.weight' has 2 replicas, and only the first one's");
    }
    net.to(DType::f64);
    DistributedDataParallel ddp(net, {.process_group = group});
    refused([&] { share(net); }, "the gradient of first.weight is averaged already");
    refused([&] { DataParallel dp(net, devices); }, "'first.weight' belongs to a DistributedDataParallel");
    DataParallel master(net, devices, {.mode = DataParallelMode::master});
    const Tensor x = wave({4, 4}, 0).to(devices.devices()[0]);
    refused([&] { master(x); }, "'first.weight' belongs to a DistributedDataParallel");
    // A DataParallel over one device has no replicas, so it must accept the model.
    DataParallel one(net, std::vector<Device>{devices.devices()[0]});
    one(x).sum().backward();
    check(net.first.weight->grad().defined(), "no gradient");
  });
}

TEST_CASE("a parameter that forward uses but the model does not contain is an error, not a local gradient") {
  struct Forgetful : nn::Module {
    explicit Forgetful(nn::Linear& other) : borrowed(other) {}
    nn::Linear& fc = add<nn::Linear>("fc", {.in_features = 4, .out_features = 4});
    nn::Linear& borrowed;  // not added
    Tensor forward(const Tensor& x) override { return borrowed(fc(x)); }
  };
  for (const DataParallelMode strategy : {DataParallelMode::replicated, DataParallelMode::master}) {
    nn::Linear other({.in_features = 4, .out_features = 2});
    Forgetful net(other);
    DataParallel dp(net, {"cpu:0", "cpu:1"}, {.mode = strategy});
    CHECK_THROWS_AS(dp(wave({6, 4}, 1)), Error);
    CHECK_FALSE(other.weight->grad().defined());
  }
}
