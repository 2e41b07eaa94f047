// DataParallel must train like one device: losses and weights over 50 steps are compared, for both
// strategies, with gathered outputs and with losses computed per replica.
#include "tests/data_parallel/models.h"
#include "tests/support/catch.h"
#include "tests/support/effort.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace tapestry::test;

namespace {

struct Variant {
  std::string name;
  double clip = 0;
  int passes = 1;         // backward passes per step
  double bucket_mb = 25;  // 1e-6 means one bucket per parameter
  int freeze_at = -1;     // the step before which the first parameter is frozen
};

// How to wrap the model in a DataParallel. A run without a Wrapped trains the model alone, on one device.
struct Wrapped {
  int devices;
  DataParallelMode strategy;
  bool loss_per_replica;  // dp.loss() instead of dp(x)
};

std::vector<Device> cpus(int n) {
  std::vector<Device> devices;
  for (int i = 0; i < n; ++i) devices.emplace_back(DeviceType::cpu, i);
  return devices;
}

template <class M>
TrainResult train(std::int64_t batch_size, const Variant& v, const std::optional<Wrapped>& wrapped = {}) {
  M net;
  net.to(DType::f64);
  fill_by_formula(net);
  std::optional<DataParallel<M>> dp;
  if (wrapped)
    dp.emplace(net, cpus(wrapped->devices),
               DataParallelOptions{
                   .mode = wrapped->strategy, .bucket_cap_mb = v.bucket_mb, .first_bucket_mb = v.bucket_mb});
  optim::SGD optimizer(net.parameters(), {.lr = 0.05, .momentum = 0.9, .weight_decay = 1e-3});
  const auto alone = [&](const auto&... args) { return nn::call(net, args...); };
  const auto loss_of = [&](const typename M::Batch& batch) { return M::loss(M::call(alone, batch), batch); };
  TrainResult result;
  for (int step = 0; step < kSteps; ++step) {
    if (step == v.freeze_at) net.parameters()[0]->set_requires_grad(false);
    optimizer.zero_grad();
    for (int pass = 0; pass < v.passes; ++pass) {
      const typename M::Batch batch = M::batch(step * v.passes + pass, batch_size);
      Tensor loss;
      if (!dp) loss = loss_of(batch);
      else if (wrapped->loss_per_replica) loss = dp->loss(batch, loss_of);
      else loss = M::loss(M::call([&](const auto&... args) { return (*dp)(args...); }, batch), batch);
      loss.backward();
      result.losses.push_back(loss.item());
    }
    if (v.clip > 0) nn::clip_grad_norm_(net.parameters(), v.clip);
    optimizer.step();
  }
  result.weights = copy_state(net);
  for (const nn::Parameter& p : net.parameters())
    for (int r = 1; r < p.replicas(); ++r) CHECK(to_vector(p.replica(r)) == to_vector(p.replica(0)));
  return result;
}

template <class M>
void compare(const Variant& v, const std::vector<std::int64_t>& batches, const std::vector<int>& devices) {
  for (const std::int64_t batch : batches) {
    const TrainResult expected = train<M>(batch, v);
    for (const int n : devices)
      for (const DataParallelMode strategy : {DataParallelMode::replicated, DataParallelMode::master})
        for (const bool loss_per_replica : {false, true}) {
          INFO(v.name << ", batch " << batch << ", " << n << " devices, "
                      << (strategy == DataParallelMode::master ? "master" : "replicated")
                      << (loss_per_replica ? ", dp.loss" : ", dp(x)"));
          const TrainResult result = train<M>(batch, v, Wrapped{n, strategy, loss_per_replica});
          CHECK(distance_of_losses(result, expected) < 1e-10);
          CHECK(distance(result.weights, expected.weights) < 1e-10);
        }
  }
}

const std::vector<std::int64_t> kBatches{1, 3, 7, 64};
const std::vector<int> kDevices{1, 2, 3, 4};

}  // namespace

TEST_CASE("a module with plain members trains as on one device") {
  compare<PlainMembers>({.name = "defaults"}, kBatches, kDevices);
}
TEST_CASE("shared, unused and frozen parameters train as on one device") {
  compare<SharedAndUnused>({.name = "defaults"}, kBatches, kDevices);
}
TEST_CASE("several inputs and outputs train as on one device") {
  compare<ManyInAndOut>({.name = "defaults"}, kBatches, kDevices);
}

TEST_CASE("training equals one device with clipping, accumulation, small buckets and freezing") {
  for (const Variant& v :
       {Variant{.name = "clipping", .clip = 0.05}, Variant{.name = "accumulation", .passes = 2},
        Variant{.name = "one bucket per parameter", .passes = 2, .bucket_mb = 1e-6},
        Variant{.name = "freezing", .freeze_at = 2 * kSteps / 5}}) {
    compare<PlainMembers>(v, {7}, {1, 3});
    compare<SharedAndUnused>(v, {3}, {4});
  }
}

TEST_CASE("the comparison detects a batch with one sample less") {
  const TrainResult seven = train<PlainMembers>(7, {.name = "7"}),
                    six = train<PlainMembers>(6, {.name = "6"});
  CHECK(distance(six.weights, seven.weights) > 1e-6);
  CHECK(distance_of_losses(six, seven) > 1e-6);
}

TEST_CASE("a loss that uses parameters outside of the call trains as on one device") {
  struct Scaled : nn::Module {
    nn::Linear& first = add<nn::Linear>("first", {.in_features = 5, .out_features = 4});
    nn::Linear& second = add<nn::Linear>("second", {.in_features = 4, .out_features = 3});
    nn::Parameter& scale = param("scale", full({}, 0.3));
    nn::Parameter& rare = param("rare", full({2}, 0.7));
    Tensor forward(const Tensor& x) override { return second(first(x).tanh()); }
  };
  enum Use { before, after, own_pass, before_the_call, in_grad };
  for (const Use use : {before, after, own_pass, before_the_call, in_grad}) {
    const auto train = [&](const std::optional<DataParallelMode>& strategy, bool per_replica) {
      Scaled net;
      net.to(DType::f64);
      fill_by_formula(net);
      std::optional<DataParallel<Scaled>> dp;
      if (strategy) dp.emplace(net, cpus(3), DataParallelOptions{.mode = *strategy});
      optim::SGD optimizer(net.parameters(), {.lr = 0.05, .momentum = 0.9, .weight_decay = 1e-2});
      for (int step = 0; step < 4; ++step) {
        optimizer.zero_grad();
        const Tensor x = wave({7, 5}, step), labels = labels_of(7, 3, step);
        const auto penalty = [&] {
          Tensor sum = net.scale.tensor().square();
          for (const auto& [name, p] : net.named_parameters())
            if (name != "rare" || step % 2 == 0) sum = sum + p->square().sum() * 0.3;
          return sum;
        };
        const Tensor factor = net.scale->exp();
        const Tensor early = use == before_the_call ? penalty() : Tensor();
        if (use == own_pass && step % 2 == 1) penalty().backward();
        Tensor loss;
        if (!dp) loss = cross_entropy(net(x), labels);
        else if (per_replica)
          loss = dp->loss(std::tie(x, labels),
                          [&](const Tensor& a, const Tensor& b) { return cross_entropy(net(a), b); });
        else loss = cross_entropy((*dp)(x), labels);
        if (use == before) loss = penalty() + loss * factor;
        if (use == after) loss = loss * factor + penalty();
        if (use == before_the_call) loss = loss * early;
        if (use == in_grad) {
          const auto g = autograd::grad({loss * factor + penalty()}, {net.scale.tensor()}, {}, true);
          loss = loss * factor + net.scale.tensor() * g[0].item();
        }
        loss.backward();
        if (use == own_pass && step % 2 == 0) penalty().backward();
        if (step == 3) nn::clip_grad_norm_(net.parameters(), 0.1);
        optimizer.step();
        for (const nn::Parameter& p : net.parameters())
          for (int r = 1; r < p.replicas(); ++r)
            CHECK(distance({{"", to_vector(p.replica(r))}}, {{"", to_vector(p.replica(0))}}) == 0);
      }
      return copy_state(net);
    };
    const StateDictCopy expected = train({}, false);
    for (const DataParallelMode strategy : {DataParallelMode::replicated, DataParallelMode::master})
      for (const bool per_replica : {false, true}) {
        INFO("use " << use << ", strategy " << static_cast<int>(strategy) << ", dp.loss " << per_replica);
        CHECK(distance(train(strategy, per_replica), expected) < 1e-13);
      }
  }
}
