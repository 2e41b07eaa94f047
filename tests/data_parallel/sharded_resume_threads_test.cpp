// A model that ShardedDataParallel divides among devices resumes with its optimizer from a sharded
// checkpoint, and from one file.
#include "tapestry/distributed/checkpoint/checkpoint.h"
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

TEST_CASE("nn::Checkpointer saves and resumes all rows of sharded devices, in any number") {
  const tests::TempDir dir;
  ShardedRun whole(3);
  whole.train(0, 2);
  const StateDictCopy saved = whole.state();
  nn::Checkpointer(dir / "run").save({&whole.net, &whole.optimizer}, {.step = 2});
  save_checkpoint(dir / "file", nullptr, {&whole.net, &whole.optimizer}, {.step = 2});
  nn::save_model(dir / "model", whole.net);
  for (const int devices : {1, 2, 3}) {
    CAPTURE(devices);
    ShardedRun resumed(devices, 0.5), collective(devices, 0.5), model(devices);
    CHECK(nn::Checkpointer(dir / "run").resume({&resumed.net, &resumed.optimizer})->step == 2);
    CHECK(resumed.state() == saved);
    CHECK(load_checkpoint(dir / "file", nullptr, {&collective.net, &collective.optimizer}).step == 2);
    CHECK(collective.state() == saved);
    nn::load_model(dir / "model", model.net);
    for (const auto& [name, tensor] : model.net.state_dict()) CHECK(to_vector(tensor) == saved.at(name));
  }
  // A checkpoint of another model changes nothing on any device.
  ShardedRun kept(2);
  kept.train(0, 1);
  const StateDictCopy before = kept.state();
  auto damaged = load_safetensors(dir / "file");
  damaged.tensors.at("ln.weight") = zeros({1});
  save_safetensors(dir / "damaged", {damaged.tensors.begin(), damaged.tensors.end()}, damaged.metadata);
  CHECK_THROWS_WITH(nn::load_checkpoint(dir / "damaged", {&kept.net, &kept.optimizer}),
                    ContainsSubstring("wrong shape: ln.weight"));
  CHECK(kept.state() == before);
}

TEST_CASE("under unshard() averages and state dicts of sharded devices are those of whole parameters") {
  ShardedRun run(3);
  nn::Embedding& tokens = run.net.tokens;  // 11 rows: 4, 4 and 3
  const std::vector<double> before = to_vector(run.net.state_dict()[0].second);
  const auto scaled = [&](double by) {
    std::vector<double> values = before;
    for (double& v : values) v = static_cast<float>(v * by);
    return values;
  };
  const NoGradGuard no_grad;
  optim::AveragedModel ema(run.net, {.avg_fn = optim::get_ema_avg(0)});  // the last weights
  {
    const auto full = run.parallel.unshard();
    tokens.weight.mul_(4);
    ema.update_parameters();
    CHECK(to_vector(run.net.state_dict()[0].second) == scaled(4));
    tokens.weight.mul_(0.5);
    {
      const auto use = ema.use();
      CHECK(to_vector(tokens.weight) == scaled(4));
    }
    CHECK(to_vector(tokens.weight) == scaled(2));
  }
  CHECK(to_vector(run.net.state_dict()[0].second) == scaled(2));
  {
    const auto use = ema.use();
    CHECK(to_vector(run.net.state_dict()[0].second) == scaled(4));
    CHECK(to_vector(ema.state_dict()[1].second) == scaled(4));
  }
  const auto full = run.parallel.unshard();
  nn::StateDict other = run.net.state_dict();
  for (auto& [name, tensor] : other) tensor = tensor.clone().fill_(3);
  run.net.load_state_dict(other);
  CHECK(to_vector(tokens.weight) == std::vector<double>(before.size(), 3));
}
