// A model that ShardedDataParallel divides among devices resumes with its optimizer from a sharded
// checkpoint.
#include "tapestry/distributed/checkpoint/sharded_checkpoint.h"
#include "tests/distributed/fsdp_models.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace tapestry::test;

namespace {

struct ShardedRun {
  explicit ShardedRun(int devices, double lr = 0.02)
      : parallel(net, cpus(devices), {.units = {&net.block1}}), optimizer(net.parameters(), {.lr = lr}) {}
  static DeviceList cpus(int n) {
    std::vector<Device> devices;
    for (int i = 0; i < n; ++i) devices.emplace_back(DeviceType::cpu, i);
    return DeviceList(devices);
  }
  void train(int first, int steps) {
    for (int step = first; step < first + steps; ++step) {
      const auto [x, y] = formula_words(step, 0, 6);
      optimizer.zero_grad();
      parallel
          .loss(std::tie(x, y),
                [&](const Tensor& a, const Tensor& b) {
                  return cross_entropy(net(a).reshape({-1, TinyGpt::kWords}), b.reshape({-1}));
                })
          .backward();
      optimizer.step();
    }
  }
  // The values of all parameters and of the optimizer's state.
  StateDictCopy state() const {
    StateDictCopy copy;
    for (const auto& [name, tensor] : parallel.whole_state_dict()) copy[name] = to_vector(tensor);
    for (const auto& [name, tensor] : parallel.whole_state_dict(optimizer)) copy[name] = to_vector(tensor);
    return copy;
  }
  TinyGpt net;
  ShardedDataParallel<TinyGpt> parallel;
  optim::AdamW optimizer;
};

}  // namespace

TEST_CASE("sharded devices load the optimizer's state of a checkpoint, and resume bit for bit") {
  const tests::TempDir dir;
  ShardedRun whole(3);
  whole.train(0, 2);
  save_sharded(dir / "step", nullptr, {&whole.net, &whole.optimizer}, {.step = 2});
  const StateDictCopy saved = whole.state();
  for (const int devices : {1, 2, 3, 4}) {
    CAPTURE(devices);
    ShardedRun resumed(devices, 0.5);
    CHECK(load_sharded(dir / "step", {&resumed.net, &resumed.optimizer}).step == 2);
    CHECK(resumed.state() == saved);
    if (devices != 3) continue;
    whole.train(2, 2);
    resumed.train(2, 2);
    CHECK(resumed.state() == whole.state());
  }
  ShardedRun other(2);
  TinyGpt without;
  CHECK_THROWS_WITH(load_sharded(dir / "step", {&without, &other.optimizer}),
                    ContainsSubstring("the optimizer"));
}
