// Tests that optimizers and gradient clipping run on the right threads if the parameters are on several
// devices.
#include "tapestry/nn/internal/replica_devices.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <future>
#include <memory>
#include <mutex>
#include <thread>

#include "tapestry/core/internal/worker.h"
#include "tests/nn/golden.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::test;

namespace {

const Device kFirst("cpu:0"), kSecond("cpu:1");

// Records the devices whose workers run tasks, and the number of tasks that the calling thread runs.
struct Seen {
  std::vector<Device> by_workers;
  int by_caller = 0;
};
Seen who_runs(std::vector<nn::ReplicaDevice> replica_devices) {
  Seen seen;
  std::mutex mutex;
  const std::thread::id caller = std::this_thread::get_id();
  nn::for_each_replica_device(replica_devices, [&](const nn::ReplicaDevice& replica_device) {
    const std::lock_guard lock(mutex);
    if (std::this_thread::get_id() == caller) ++seen.by_caller;
    else if (device_worker(replica_device.device).is_current())
      seen.by_workers.push_back(replica_device.device);
  });
  return seen;
}

// A model with parameters on two devices.
struct Split {
  explicit Split(Device second) {
    for (int i = 0; i < 6; ++i) {
      const Device device = i % 3 == 1 ? second : kFirst;
      params.emplace_back("p", formula({30 + i, 4}, i).to(device));
    }
  }
  void set_grads(int step) {
    for (std::size_t i = 0; i < params.size(); ++i) {
      const Tensor grad = formula(params[i]->sizes(), 100 * step + static_cast<int>(i), 3);
      if (i != 3) params[i]->set_grad(grad.to(params[i]->device()));  // parameter 3 never has a gradient
    }
  }
  std::vector<std::vector<double>> values(bool of_gradients = false) const {
    std::vector<std::vector<double>> all;
    for (const nn::Parameter& p : params)
      if (!of_gradients) all.push_back(values_of(p));
      else if (p->grad().defined()) all.push_back(values_of(p->grad()));
    return all;
  }
  std::vector<nn::Parameter> params;
};

// A task that records its thread, optionally waits for the other device's task, and fails on one device.
class Watched : public optim::SGD {
 public:
  using SGD::SGD;
  std::array<std::atomic<int>, 2> by_workers = {}, by_caller = {};
  std::atomic<int> wrong = 0;
  bool at_the_same_time = false;
  Device fails = "cpu:63";

 protected:
  void update(std::size_t group, Device device, DType dtype, const kernels::StepItems& items) override {
    const auto at = static_cast<std::size_t>(device.index);
    if (grad_enabled()) ++wrong;
    ++(device_worker(device).is_current() ? by_workers : by_caller)[at];
    if (at_the_same_time) {
      arrived_[at].set_value();
      if (here_[1 - at].wait_for(std::chrono::seconds(30)) != std::future_status::ready) ++wrong;
    }
    check<IndexError>(!(device == fails), "[step] as planned");
    SGD::update(group, device, dtype, items);
  }

 private:
  std::promise<void> arrived_[2];
  std::future<void> here_[2] = {arrived_[0].get_future(), arrived_[1].get_future()};
};

}  // namespace

TEST_CASE("tasks for one device run on the calling thread, tasks for several on the devices' workers") {
  REQUIRE(device_count(DeviceType::cpu) == 2);
  CHECK(who_runs({}).by_caller == 0);
  CHECK(who_runs({{0, kSecond}}).by_caller == 1);
  CHECK(who_runs({{0, "cuda:0"}, {0, "cuda:1"}, {0, kFirst}}).by_caller == 3);
  for (const auto& replica_devices :
       {std::vector<nn::ReplicaDevice>{{0, kFirst}, {0, kSecond}}, {{0, kFirst}, {1, kSecond}}}) {
    Seen seen = who_runs(replica_devices);
    CHECK(seen.by_caller == 0);
    REQUIRE(seen.by_workers.size() == 2);
    CHECK_FALSE(seen.by_workers[0] == seen.by_workers[1]);
  }

  std::vector<nn::ReplicaDevice> replica_devices;
  Split split(kSecond);
  nn::add_replica_devices(split.params, replica_devices);
  CHECK(replica_devices.empty());  // the list must be empty, because there are no gradients yet
  split.set_grads(0);
  nn::add_replica_devices(split.params, replica_devices);
  nn::add_replica_devices(split.params, replica_devices);
  CHECK(replica_devices == std::vector<nn::ReplicaDevice>{{0, kFirst}, {0, kSecond}});
  CHECK(replica_devices[1].has(split.params[1]));
  CHECK_FALSE(replica_devices[1].has(split.params[0]));
}

TEST_CASE("training with parameters on two devices gives the bits of one device") {
  for (const bool adam : {false, true}) {
    Split alone(kFirst), split(kSecond);
    const auto optimizer_of = [&](const Split& s) -> std::unique_ptr<optim::Optimizer> {
      // Two parameter groups, each with parameters on both devices.
      const std::vector<nn::Parameter> a(s.params.begin(), s.params.begin() + 3),
          b(s.params.begin() + 3, s.params.end());
      if (adam)
        return std::make_unique<optim::AdamW>(std::vector<optim::AdamW::Group>{{a, {}}, {b, {.lr = 0.1}}});
      return std::make_unique<optim::SGD>(
          std::vector<optim::SGD::Group>{{a, {.lr = 0.1, .momentum = 0.9}}, {b, {.lr = 0.01}}});
    };
    const auto reference = optimizer_of(alone), optimizer = optimizer_of(split);
    for (int step = 0; step < 5; ++step) {
      for (auto* s : {&alone, &split}) s->set_grads(step);
      const double expected = nn::clip_grad_norm_(alone.params, 2).item();
      CHECK(nn::clip_grad_norm_(split.params, 2).item() == expected);
      CHECK(expected > 2);
      if (step == 3)
        for (auto* s : {&alone, &split}) nn::clip_grad_value_(s->params, 0.05);
      CHECK(split.values(/*of_gradients=*/true) == alone.values(true));
      reference->step();
      optimizer->step();
    }
    CHECK(split.values() == alone.values());
    CHECK(split.params[1]->device() == kSecond);
    optimizer->zero_grad(/*set_to_none=*/false);
    for (const auto& grad : split.values(true))
      CHECK(std::all_of(grad.begin(), grad.end(), [](double x) { return x == 0; }));
    CHECK(split.values(true).size() == 5);
    optimizer->zero_grad();
    CHECK(split.values(true).empty());
    const auto before = split.values();
    CHECK_NOTHROW(optimizer->step());  // no gradient exists, so step() must do nothing
    CHECK(nn::clip_grad_norm_(split.params, 2).item() == 0);
    CHECK(split.values() == before);
  }
}

TEST_CASE("workers of several devices step at the same time; one device steps on the calling thread") {
  Split split(kSecond), alone(kFirst);
  Watched both(split.params), one(alone.params);
  both.at_the_same_time = true;
  split.set_grads(0);
  both.step();
  CHECK(both.wrong == 0);
  CHECK(both.by_workers[0] == 1);
  CHECK(both.by_workers[1] == 1);
  CHECK(both.by_caller[0] + both.by_caller[1] == 0);
  alone.set_grads(0);
  one.step();
  CHECK(one.by_caller[0] == 1);
  CHECK(one.wrong == 0);
  CHECK(one.by_workers[0] + one.by_workers[1] == 0);
}

TEST_CASE("a step that fails on one device names the device after the other devices have finished") {
  Split split(kSecond);
  Watched optimizer(split.params, {.lr = 0.1});
  const auto before = split.values();
  split.set_grads(0);
  optimizer.fails = kSecond;
  CHECK_THROWS_WITH(optimizer.step(), "[step] as planned (on cpu:1)");
  CHECK_THROWS_AS(optimizer.step(), IndexError);
  CHECK(split.values()[1] == before[1]);
  CHECK(split.values()[0] != before[0]);
  optimizer.fails = "cpu:63";
  CHECK_NOTHROW(optimizer.step());
  CHECK(split.values()[1] != before[1]);
}
