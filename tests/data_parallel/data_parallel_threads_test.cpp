// Tests properties of DataParallel other than its results: bytes copied, buffers, random numbers, threads.
#include <dlfcn.h>

#include <thread>

#include "tapestry/autograd/internal/nested.h"
#include "tapestry/core/internal/worker.h"
#include "tests/core/child.h"
#include "tests/data_parallel/models.h"
#include "tests/support/catch.h"
#include "tests/support/threads.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace tapestry::test;

namespace {

template <class M>
void prepare(M& net) {
  net.to(DType::f64);
  fill_by_formula(net);
}

std::int64_t bytes_of(const nn::Module& module) {
  std::int64_t bytes = 0;
  for (const nn::Parameter& p : module.parameters()) bytes += static_cast<std::int64_t>(p->nbytes());
  for (const nn::Buffer& b : module.buffers()) bytes += static_cast<std::int64_t>(b->nbytes());
  return bytes;
}

template <class Dp>
double step(Dp& dp, optim::Optimizer& optimizer, int number, std::int64_t size) {
  const auto batch = PlainMembers::batch(number, size);
  optimizer.zero_grad();
  const Tensor loss = cross_entropy(dp(batch.x), batch.labels);
  loss.backward();
  optimizer.step();
  return loss.item();
}

}  // namespace

TEST_CASE("devices are given as strings, as indices, or not at all for all devices") {
  PlainMembers net;
  using Devices = std::vector<Device>;
  CHECK(DataParallel(net, {"cpu:0", "cpu:2"}).devices() == Devices{"cpu:0", "cpu:2"});
  CHECK(DataParallel(net, {1, 3}).devices() == Devices{"cpu:1", "cpu:3"});
  CHECK(net.fc.weight->device() == Device("cpu:1"));
  CHECK(DataParallel(net).devices() == Devices{"cpu:0", "cpu:1", "cpu:2", "cpu:3"});
  CHECK(DataParallel(net, std::vector<int>{2}).devices() == Devices{"cpu:2"});
  CHECK(net.fc.weight.replicas() == 1);
  DataParallel master(net, {0, 1}, {.mode = DataParallelMode::master});
  CHECK(master.mode() == DataParallelMode::master);
  CHECK(&master.module() == &net);

  CHECK_THROWS_WITH(DataParallel(net, std::vector<Device>{}), ContainsSubstring("there are no devices"));
  CHECK_THROWS_WITH(DataParallel(net, {"cpu:1", "cpu:1"}), ContainsSubstring("cpu:1 is named twice"));
  CHECK_THROWS_WITH(DataParallel(net, {"cpu:0", "cpu:4"}),
                    ContainsSubstring("[DataParallel] device cpu:4 does not"));
  CHECK_THROWS_AS(DataParallel(net, {0, 77}), DeviceError);
  CHECK_THROWS_WITH(DataParallel(net, {0, 1}, {.bucket_cap_mb = 0}), ContainsSubstring("bucket_cap_mb is 0"));
  CHECK_THROWS_WITH(DataParallel(net, {0, 1}, {.backend = "gloo"}),
                    ContainsSubstring("it is nccl, local or empty"));
  nn::Sequential split(nn::Linear::Options{.in_features = 2, .out_features = 2},
                       nn::Linear::Options{.in_features = 2, .out_features = 2});
  split.at("1").to("cpu:1");
  CHECK_THROWS_WITH(DataParallel(split, {0, 1}),
                    ContainsSubstring("the model is on several devices: 0.weight on cpu:0"));
}

TEST_CASE("parameters are copied again only after a change from outside") {
  PlainMembers net;
  prepare(net);
  DataParallel dp(net, {0, 1, 2});
  optim::SGD optimizer(net.parameters(), {.lr = 0.1});
  CHECK(dp.bytes_broadcast() == 2 * bytes_of(net));
  CHECK(dp.report().buckets.empty());
  for (int i = 0; i < 5; ++i) step(dp, optimizer, i, 6);
  CHECK(dp.bytes_broadcast() == 2 * bytes_of(net));
  REQUIRE(dp.report().buckets.size() == 1);
  std::size_t in_bucket = 0;  // gradients are padded to multiples of 64 bytes
  for (const nn::Parameter& p : net.parameters()) in_bucket += (p->nbytes() + 63) / 64 * 64;
  CHECK(dp.report().buckets[0].bytes == in_bucket);

  const auto equal = [&] {
    for (const nn::Parameter& p : net.parameters())
      for (int r = 1; r < 3; ++r)
        if (to_vector(p.replica(r)) != to_vector(p.replica(0))) return false;
    return true;
  };
  net.fc.bias->detach().mul_(2);
  CHECK_FALSE(equal());
  step(dp, optimizer, 5, 6);
  CHECK(equal());
  CHECK(dp.bytes_broadcast() == 2 * (bytes_of(net) + 4 * 8));
  // load_state_dict() writes all replicas, so nothing is copied later.
  const StateDictCopy before = copy_state(net);
  nn::StateDict saved;
  for (const auto& [name, t] : net.state_dict()) saved.emplace_back(name, t.clone());
  step(dp, optimizer, 6, 6);
  net.load_state_dict(saved);
  CHECK(copy_state(net) == before);
  CHECK(equal());
  step(dp, optimizer, 7, 6);
  CHECK(dp.bytes_broadcast() == 2 * (bytes_of(net) + 4 * 8));
  // With a new tensor in the first replica's slot, all replicas are created again.
  net.fc.weight.set_replica(0, net.fc.weight->detach().clone().set_requires_grad());
  step(dp, optimizer, 8, 6);
  CHECK(equal());
}

TEST_CASE(
    "under the master strategy parameters are copied before every forward, and replicas are dropped after "
    "it") {
  PlainMembers net;
  DataParallel dp(net, {0, 1, 2}, {.mode = DataParallelMode::master});
  optim::SGD optimizer(net.parameters(), {.lr = 0.1});
  net.to(DType::f64);
  CHECK(dp.bytes_broadcast() == 0);
  for (int i = 1; i <= 3; ++i) {
    step(dp, optimizer, i, 6);
    CHECK(dp.bytes_broadcast() == i * 2 * bytes_of(net));
    CHECK(net.fc.weight.replicas() == 1);
  }
}

TEST_CASE("backward adds to gradients that were computed without DataParallel, on all replicas") {
  PlainMembers net, alone;
  prepare(net);
  prepare(alone);
  DataParallel dp(net, {0, 1, 2});
  CHECK_THROWS_WITH(DataParallel(net, {0, 1}), ContainsSubstring("has 3 replicas already"));
  const auto a = PlainMembers::batch(1, 5), b = PlainMembers::batch(2, 7);
  for (int i = 0; i < 2; ++i) {
    for (PlainMembers* m : {&net, &alone}) {
      m->zero_grad(i == 0);
      cross_entropy((*m)(a.x), a.labels).backward();  // without dp
      m->fc.bias->grad().mul_(3);
    }
    cross_entropy(dp(b.x), b.labels).backward();
    cross_entropy(alone(b.x), b.labels).backward();
    net.conv.bias->zero_grad();
    alone.conv.bias->zero_grad();
    cross_entropy(dp(a.x), a.labels).backward();
    cross_entropy(alone(a.x), a.labels).backward();
    for (std::size_t p = 0; p < alone.parameters().size(); ++p)
      for (int r = 0; r < 3; ++r)
        CHECK(allclose(net.parameters()[p].replica(r).grad().to(kCPU), alone.parameters()[p]->grad(), 1e-12,
                       1e-14));
  }
}

TEST_CASE("gradients that are changed by hand on the first replica step all replicas") {
  PlainMembers net, alone;
  prepare(net);
  prepare(alone);
  DataParallel dp(net, {0, 1, 2});
  optim::SGD optimizer(net.parameters(), {.lr = 0.1}), reference(alone.parameters(), {.lr = 0.1});
  for (int i = 0; i < 6; ++i) {
    const auto by_hand = [&](PlainMembers& m, optim::Optimizer& o) {
      const Tensor bias = m.fc.bias->grad();
      for (const nn::Parameter& p : m.parameters())
        if (i % 2) p->grad().clamp_(-0.01, 0.01);
        else p->set_grad(p->grad().clamp(-0.01, 0.01));
      if (i % 3 == 1) nn::clip_grad_norm_(m.parameters(), 0.01);
      if (i == 2) m.fc.bias->set_grad(bias);
      if (i == 4) m.conv.bias->zero_grad();
      o.step();
    };
    const auto b = PlainMembers::batch(i, 6);
    optimizer.zero_grad();
    reference.zero_grad();
    cross_entropy(dp(b.x), b.labels).backward();
    cross_entropy(alone(b.x), b.labels).backward();
    if (i == 5) {
      net.fc.weight->square().sum().backward();  // outside of the call
      alone.fc.weight->square().sum().backward();
    }
    by_hand(net, optimizer);
    by_hand(alone, reference);
    CHECK(distance(copy_state(net), copy_state(alone)) < 1e-13);
    CHECK_NOTHROW(check_replicas(net));
  }
  CHECK(dp.bytes_broadcast() == 2 * bytes_of(net));
}

TEST_CASE("a replica that differs is named with its device, its tensor and the difference") {
  PlainMembers net;
  prepare(net);
  DataParallel dp(net, {0, 1, 2});
  optim::SGD optimizer(net.parameters(), {.lr = 0.1});
  const auto b = PlainMembers::batch(0, 6);
  const auto backward = [&] {
    optimizer.zero_grad();
    cross_entropy(dp(b.x), b.labels).backward();
  };
  const StateDictCopy before = copy_state(net);
  backward();
  const Tensor bias = net.fc.bias.replica(2).grad();
  bias.add_(0.25);
  CHECK_THROWS_WITH(optimizer.step(),
                    ContainsSubstring("[DataParallel] the gradient of fc.bias on cpu:2 differs from that on "
                                      "cpu:0 by up to 0.25"));
  net.fc.bias.replica(2).set_grad(bias.sub(0.25).clone());  // another tensor with the old values
  net.conv.bias.replica(1).set_grad({});
  CHECK_THROWS_WITH(optimizer.step(),
                    ContainsSubstring("the gradient of conv.bias on cpu:1 differs from that "
                                      "on cpu:0: the one on cpu:1 is undefined"));
  CHECK(copy_state(net) == before);
  backward();
  on_replicas(dp.devices(), [&](int r) {  // every replica in the same way, in place and with a new tensor
    net.fc.bias.replica(r).grad().mul_(2);
    net.fc.weight.replica(r).set_grad(net.fc.weight.replica(r).grad().mul(2));
  });
  optimizer.step();
  check_replicas(net);

  net.fc.bias.replica(1).detach().add_(0.5);
  const std::string text = "fc.bias on cpu:1 differs from that on cpu:0 by up to 0.5";
  CHECK_THROWS_WITH(dp(b.x), ContainsSubstring("[DataParallel] " + text));
  CHECK_THROWS_WITH(check_replicas(net), ContainsSubstring("[check_replicas] " + text));
  replicate(net, dp.devices());  // copies the first one's values
  dp(b.x);
  on_replicas(dp.devices(), [&](int r) { net.fc.bias.replica(r).detach().add_(0.5 * r); });
  dp(b.x);  // all were changed once
  CHECK_THROWS_WITH(check_replicas(net), ContainsSubstring(text));
}

TEST_CASE("a forward that gives each replica other parameters is an error of the first pass") {
  struct Centred : nn::Module {
    nn::Parameter& shift = param("shift", zeros({1}, DType::f64));
    Tensor forward(const Tensor& x) override {
      if (shift.item() == 0) shift->detach().copy_(x.detach().mean());  // by the part of the batch
      return x - shift;
    }
  } net;
  DataParallel dp(net, {0, 1});
  CHECK_THROWS_WITH(dp(wave({4, 1}, 0)).sum().backward(),
                    ContainsSubstring("[DataParallel] shift on cpu:1 differs from that on cpu:0 by up to"));
}

TEST_CASE("running statistics are those of the first replica, in training and evaluation") {
  for (const DataParallelMode strategy : {DataParallelMode::replicated, DataParallelMode::master}) {
    SmallCnn net, alone;
    prepare(net);
    prepare(alone);
    const auto [x, labels] = formula_batch(0, 0, 7);
    {
      DataParallel dp(net, {0, 1, 2}, {.mode = strategy});
      for (int i = 0; i < 3; ++i) {
        const Tensor y = dp(x);
        const Tensor first = alone(x.narrow(0, 0, 3));
        CHECK(allclose(y.narrow(0, 0, 3), first, 1e-12, 1e-14));
      }
      for (std::size_t i = 0; i < net.buffers().size(); ++i)
        CHECK(allclose(net.buffers()[i].tensor(), alone.buffers()[i].tensor(), 1e-12, 1e-14));
      net.eval();
      alone.eval();
      CHECK(allclose(dp(x), alone(x), 1e-12, 1e-14));
      const NoGradGuard no_grad;
      CHECK_FALSE(dp(x).requires_grad());
      CHECK_FALSE(net.conv1.weight->grad().defined());
    }
    CHECK(net.conv1.weight.replicas() == 1);
    CHECK(allclose(net(x), alone(x), 1e-12, 1e-14));
  }
}

TEST_CASE("gradients reach the inputs, and autograd::grad() changes no parameter's gradient") {
  PlainMembers net;
  prepare(net);
  const auto batch = PlainMembers::batch(1, 7);
  const Tensor x = batch.x.set_requires_grad();
  const Tensor expected = autograd::grad({cross_entropy(net(x * 2), batch.labels)}, {x})[0];
  cross_entropy(net(x * 2), batch.labels).backward();
  const Tensor weight = net.conv.weight->grad().clone();
  for (const DataParallelMode strategy : {DataParallelMode::replicated, DataParallelMode::master}) {
    net.zero_grad();
    x.zero_grad();
    DataParallel dp(net, {0, 1, 2}, {.mode = strategy});
    CHECK(allclose(autograd::grad({cross_entropy(dp(x * 2), batch.labels)}, {x})[0], expected, 1e-12, 1e-14));
    CHECK_FALSE(net.conv.weight->grad().defined());
    const Tensor loss = cross_entropy(dp(x * 2), batch.labels);
    loss.backward({}, true);
    CHECK(allclose(x.grad(), expected, 1e-12, 1e-14));
    CHECK(allclose(net.conv.weight->grad(), weight, 1e-12, 1e-14));
    loss.backward();
    CHECK(allclose(net.conv.weight->grad(), weight * 2, 1e-12, 1e-14));
    CHECK_THROWS_WITH(loss.backward(), ContainsSubstring("already used by a backward pass"));
    const Tensor again = cross_entropy(dp(x * 2), batch.labels);
    autograd::WeightGradients weights;
    CHECK_THROWS_AS(autograd::nested_pass(), AutogradError);
    CHECK_THROWS_WITH(autograd::backward_inputs({again}, {x}, {}, weights),
                      ContainsSubstring("backward_inputs()"));
  }
}

TEST_CASE("loss() returns the mean loss and gathers the other results") {
  PlainMembers net;
  prepare(net);
  const auto batch = PlainMembers::batch(1, 5);
  for (const int devices : {1, 2}) {
    DataParallel dp(net, devices == 1 ? DeviceList{0} : DeviceList{0, 1});
    const auto [loss, scores] =
        dp.loss(std::tie(batch.x, batch.labels), [&](const Tensor& x, const Tensor& labels) {
          const Tensor s = net(x);
          return std::pair(cross_entropy(s, labels).reshape({1}), s.detach());
        });
    CHECK(loss.dim() == 0);
    CHECK(scores.sizes() == Shape{5, 4});
    CHECK_FALSE(scores.requires_grad());
    CHECK(loss.item() == Approx(cross_entropy(net(batch.x), batch.labels).item()).epsilon(1e-14));
    CHECK_THROWS_WITH(dp.loss(batch, [&](const PlainMembers::Batch& b) { return net(b.x); }),
                      ContainsSubstring("the loss is float64 [") && ContainsSubstring(", 4]; return one"));
    CHECK_THROWS_WITH(dp.loss(batch, [](const PlainMembers::Batch&) { return 3; }),
                      ContainsSubstring("the loss is undefined"));
    CHECK_THROWS_WITH(dp.loss(batch, [](const PlainMembers::Batch&) { return Tensor(); }),
                      ContainsSubstring("the loss is undefined"));
  }
}

TEST_CASE("outputs without dimensions become one element per replica, also with one replica") {
  struct Sum : nn::Module {
    nn::Linear& fc = add<nn::Linear>("fc", {.in_features = 3, .out_features = 2});
    Tensor forward(const Tensor& x) override { return fc(x).sum(); }
  } net;
  prepare(net);
  const Tensor x = wave({5, 3}, 1);
  for (const int devices : {1, 3}) {
    DataParallel dp(net, devices == 1 ? DeviceList{0} : DeviceList{0, 1, 2});
    const Tensor sums = dp(x);
    CHECK(sums.sizes() == Shape{devices});
    net.zero_grad();
    sums.sum().backward();
    CHECK(net.fc.bias->grad().sum().item() == Approx(10));
    const auto [loss, beside] =
        dp.loss(x, [&](const Tensor& part) { return std::pair(net(part), net(part)); });
    CHECK(loss.sizes() == Shape{});
    CHECK(beside.sizes() == Shape{devices});
  }
}

TEST_CASE("replicas draw different random numbers, and a seed or a saved state reproduces them") {
  struct Noise : nn::Module {
    nn::Dropout& dropout = add<nn::Dropout>("dropout", {.p = 0.5});
    nn::Parameter& w = param("w", ones({1}));
    Tensor forward(const Tensor& x) override { return dropout(x * w.tensor()); }
  } net;
  DataParallel dp(net, {0, 1});
  const Tensor x = ones({2, 200});
  manual_seed(3);
  const std::vector<double> first = to_vector(dp(x)), second = to_vector(dp(x));
  CHECK(std::vector(first.begin(), first.begin() + 200) != std::vector(first.begin() + 200, first.end()));
  CHECK(first != second);
  manual_seed(3);
  CHECK(to_vector(dp(x)) == first);
  const auto state = default_generator(kCPU).state();
  CHECK(to_vector(dp(x)) == second);
  manual_seed(4);
  CHECK(to_vector(dp(x)) != first);
  default_generator(kCPU).set_state(state);  // as loading a checkpoint does
  CHECK(to_vector(dp(x)) == second);
}

TEST_CASE("a parameter that only some replicas use gets the sum of their gradients") {
  struct Branches : nn::Module {
    nn::Linear& always = add<nn::Linear>("always", {.in_features = 2, .out_features = 2});
    nn::Linear& sometimes = add<nn::Linear>("sometimes", {.in_features = 2, .out_features = 2});
    Tensor forward(const Tensor& x) override {
      return x.select(0, 0).select(0, 0).item() > 0 ? sometimes(always(x))
             : x.sum().item() == 0                  ? x
                                                    : always(x);
    }
  } net;
  prepare(net);
  const auto gradients = [&](const Tensor& x, DataParallelMode strategy, int devices) {
    std::vector<Device> on;
    for (int i = 0; i < devices; ++i) on.emplace_back(DeviceType::cpu, i);
    DataParallel dp(net, on, {.mode = strategy});
    net.zero_grad();
    const Tensor y = dp(x);
    if (y.requires_grad()) y.sum().backward();
    std::vector<std::vector<double>> all;
    for (const nn::Parameter& p : net.parameters())
      all.push_back(p->grad().defined() ? to_vector(p->grad()) : std::vector<double>{});
    return all;
  };
  // Replica 0 uses both layers, replica 1 uses one, replica 2 uses none.
  const double values[] = {1, 2, -1, 3, 0, 0};
  const Tensor x = empty({3, 2}, DType::f64);
  std::copy(values, values + 6, x.data<double>());
  const auto replicated = gradients(x, DataParallelMode::replicated, 3),
             master = gradients(x, DataParallelMode::master, 3);
  for (std::size_t p = 0; p < 4; ++p) {
    REQUIRE(replicated[p].size() == master[p].size());
    for (std::size_t i = 0; i < master[p].size(); ++i)
      CHECK(replicated[p][i] == Approx(master[p][i]).epsilon(1e-14));
  }
  CHECK(gradients(x, DataParallelMode::replicated, 3)[3].size() == 2);
  // A layer that no replica uses must have no gradient.
  const Tensor rest = x.narrow(0, 1, 2);
  CHECK(gradients(rest, DataParallelMode::replicated, 2) == gradients(rest, DataParallelMode::master, 2));
  CHECK(gradients(rest, DataParallelMode::replicated, 2)[3].empty());
  // A pass in which no parameter gets a gradient must not hang.
  CHECK(gradients(zeros({2, 2}, DType::f64), DataParallelMode::replicated, 2)[0].empty());
}

TEST_CASE("two DataParallels on the same devices train at the same time from two threads") {
  const auto train = [](std::int64_t size) {  // no CHECK: Catch2 allows it on one thread only
    PlainMembers net;
    prepare(net);
    DataParallel dp(net, {0, 1, 2}, {.bucket_cap_mb = 1e-6, .first_bucket_mb = 1e-6});
    optim::SGD optimizer(net.parameters(), {.lr = 0.1});
    for (int i = 0; i < 100; ++i) step(dp, optimizer, i, size);
    return copy_state(net);
  };
  const StateDictCopy five = train(5), seven = train(7);
  StateDictCopy other;
  std::thread thread([&] { other = train(7); });
  const StateDictCopy own = train(5);
  thread.join();
  CHECK(own == five);
  CHECK(other == seven);
}

TEST_CASE("each replica has its own value of a PerReplica member") {
  struct Counting : nn::Module {
    nn::Linear& fc = add<nn::Linear>("fc", {.in_features = 2, .out_features = 1});
    nn::PerReplica<int> samples;
    Tensor forward(const Tensor& x) override {
      *samples += static_cast<int>(x.size(0));
      return fc(x);
    }
  } net;
  DataParallel dp(net, {0, 1, 2});
  for (int i = 0; i < 10; ++i) dp(zeros({8, 2}));
  CHECK(*net.samples == 30);
  std::vector<int> all(3);
  on_replicas(dp.devices(), [&](int r) { all[static_cast<std::size_t>(r)] = *net.samples; });
  CHECK(all == std::vector<int>{30, 30, 20});
}

// ---- warnings ----

TEST_CASE("child: a batch of one", "[.]") {
  PlainMembers net;
  DataParallel dp(net, {1, 2, 3});
  for (int i = 0; i < 3; ++i) dp(zeros({1, 1, 8, 8}));
}
TEST_CASE("child: one device", "[.]") {
  PlainMembers net;
  DataParallel dp(net);
  CHECK(dp(zeros({3, 1, 8, 8})).sizes() == Shape{3, 4});
}

TEST_CASE("each warning is printed once") {
  const auto count = [](const std::string& text, const std::string& part) {
    int n = 0;
    for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
    return n;
  };
  const std::string small = run_child("child: a batch of one", "TAPESTRY_LOGICAL_DEVICES=4").output;
  INFO(small);
  CHECK(count(small, "a batch of 1 for 3 devices leaves nothing to do for cpu:2, cpu:3") == 1);
  CHECK(count(small, "an input is on cpu:0, but the first of the devices cpu:1, cpu:2, cpu:3 is cpu:1") == 1);
  CHECK(count(small, "warning") == 2);
  const std::string one =
      run_child("child: one device", "TAPESTRY_LOGICAL_DEVICES=1 CUDA_VISIBLE_DEVICES=-1").output;
  INFO(one);
  CHECK(count(one, "there is only one device, cpu:0, so it does all the work. Visible CUDA devices: 0 (") ==
        1);
  CHECK(count(one, "CUDA_VISIBLE_DEVICES is \"-1\"") == 1);
  CHECK(count(one, "warning") == 1);
  CHECK(count(one, "All tests passed") == 1);
}

// ---- threads ----

TEST_CASE("child: threads that open OpenMP regions", "[.]") {
  const int share = get_num_threads() / 2;
  nn::Sequential net(nn::Linear::Options{.in_features = 256, .out_features = 256}, nn::ReLU::Options{},
                     nn::BatchNorm1d::Options{.num_features = 256},
                     nn::Linear::Options{.in_features = 256, .out_features = 10});
  optim::SGD optimizer(net.parameters(), {.lr = 0.1, .momentum = 0.9});
  DataParallel dp(net, {0, 1});
  const Tensor x = ones({512, 256}), labels = zeros({512}, kInt64);
  for (int i = 0; i < 3; ++i) {
    optimizer.zero_grad();
    dp.loss(std::tie(x, labels), [&](const Tensor& a, const Tensor& b) {
        return cross_entropy(net(a), b);
      }).backward();
    nn::clip_grad_norm_(net.parameters(), 1);
    optimizer.step();
  }
  std::string own;
  std::getline(std::ifstream("/proc/self/comm"), own);
  std::printf("share %d: %d %d %d %d, caller %d\n", share, threads_named("compute cpu:0"),
              threads_named("compute cpu:1"), threads_named("collectives 0"), threads_named("collectives 1"),
              threads_named(own));
}

TEST_CASE(
    "each worker opens OpenMP regions with its part of the threads, and communication threads open none") {
  const std::string two =
      run_child("child: threads that open OpenMP regions", "TAPESTRY_LOGICAL_DEVICES=2 OMP_NUM_THREADS=2")
          .output;
  CHECK_THAT(two, ContainsSubstring("share 1: 1 1 1 1"));
  if (!dlsym(RTLD_DEFAULT, "omp_get_num_threads")) return;  // built without OpenMP
  CHECK_THAT(two, ContainsSubstring("caller 1"));
  CHECK_THAT(
      run_child("child: threads that open OpenMP regions", "TAPESTRY_LOGICAL_DEVICES=2 OMP_NUM_THREADS=6")
          .output,
      ContainsSubstring("share 3: 3 3 1 1"));
}
