// Trains with ShardedDataParallel over two CUDA devices. The weights must be those of the CPU alone.
#include "tests/device/train.h"
#include "tests/support/gpu.h"

using namespace tapestry;
using namespace tapestry::distributed;
using device_tests::compare, device_tests::train, device_tests::Trained;

namespace {

struct Net : nn::Module {
  nn::Linear& fc1 = add<nn::Linear>("fc1", {.in_features = 6, .out_features = 9});
  nn::Linear& fc2 = add<nn::Linear>("fc2", {.in_features = 9, .out_features = 9});
  nn::Linear& fc3 = add<nn::Linear>("fc3", {.in_features = 9, .out_features = 4});
  Tensor forward(const Tensor& x) override { return fc3(fc2(fc1(x).relu()).tanh()); }
};

std::unique_ptr<Net> make() {
  manual_seed(1);
  return std::make_unique<Net>();
}

// The shards are exchanged through the host, because fake GPUs have no NCCL.
ShardedDataParallelOptions options_for(Net& net, bool offload) {
  return {.units = {&net.fc1, &net.fc2}, .backend = "local", .offload = offload};
}

}  // namespace

TEST_CASE("sharded over two CUDA devices, a model trains as on the CPU alone") {
  if (no_gpu(2)) return;
  const auto alone = make();
  const Trained expected = train(*alone, {5, 6}, {5, 4}, [&](const Tensor& x, const Tensor& target) {
    return mse_loss((*alone)(x), target);
  });
  for (const bool offload : {false, true})
    for (const bool loss_there : {false, true}) {
      CAPTURE(offload, loss_there);
      const auto net = make();
      ShardedDataParallel sharded(*net, {"cuda:0", "cuda:1"}, options_for(*net, offload));
      const Tensor shard = net->fc2.weight.replica(1);
      CHECK(shard.device() == (offload ? kCPU : Device("cuda:1")));
      CHECK(is_pinned(shard) == offload);
      CHECK(shard.size(0) == 4);  // of 9 rows
      Trained trained = train(*net, {5, 6}, {5, 4}, [&](const Tensor& x, const Tensor& target) {
        if (!loss_there) return mse_loss(sharded(x), target.to("cuda:0"));
        return sharded.loss(std::tie(x, target), [&](const Tensor& part, const Tensor& wanted) {
          return mse_loss((*net)(part), wanted);
        });
      });
      trained.weights.clear();
      for (const auto& [name, whole] : sharded.whole_state_dict()) trained.weights.push_back(whole);
      compare(trained, expected);
    }
}

TEST_CASE("with offload, the GPUs of a ShardedDataParallel keep no shards, gradients or optimizer state") {
  if (no_gpu(2)) return;
  const auto net = make();
  const MemoryRecord record;
  ShardedDataParallel sharded(*net, {"cuda:0", "cuda:1"}, options_for(*net, true));
  optim::AdamW optimizer(net->parameters(), {.lr = 0.05});
  const Tensor x = ones({5, 6}, kCPU), target = zeros({5, 4}, kCPU);
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    mse_loss(sharded(x), target.to("cuda:0")).backward();
    nn::clip_grad_norm_(net->parameters(), 0.1);
    optimizer.step();
  }
  for (int r = 0; r < 2; ++r) {
    CAPTURE(r);
    for (const nn::Parameter& p : net->parameters()) CHECK(p.replica(r).grad().device() == kCPU);
    for (const optim::StateTensor& state : optimizer.state_tensors(r)) CHECK(state.tensor.device() == kCPU);
    const MemorySample left = record.samples(Device(DeviceType::cuda, r)).back();
    for (const MemoryKind kind : {MemoryKind::parameters, MemoryKind::gradients, MemoryKind::optimizer})
      CHECK(left.bytes[static_cast<std::size_t>(kind)] == 0);
  }
  const nn::StateDict state = sharded.whole_state_dict(optimizer);
  optim::AdamW loaded(net->parameters(), {.lr = 0.1});
  loaded.load_state_dict(state);
  CHECK(sharded.whole_state_dict(loaded).size() == state.size());
}

TEST_CASE("with offload, a ShardedDataParallel accumulates, keeps changes, and goes on after an error") {
  if (no_gpu(2)) return;
  const Tensor x = ones({4, 6}, kCPU);
  std::vector<Tensor> gradients[2];
  for (const bool offload : {false, true}) {
    const auto net = make();
    ShardedDataParallel sharded(*net, {"cuda:0", "cuda:1"}, options_for(*net, offload));
    {
      const auto full = sharded.unshard();
      CHECK(net->fc2.weight->device() == Device("cuda:0"));
      const NoGradGuard no_grad;
      net->fc2.weight->mul_(0.5);
    }
    const auto pass = [&](double scale) { (sharded(x) * scale).sum().backward(); };
    CHECK_THROWS_WITH(sharded.loss(std::tie(x),
                                   [&](const Tensor& part) -> Tensor {
                                     if (current_context().replica == 1) fail("[user] as planned");
                                     return (*net)(part).sum();
                                   }),
                      ContainsSubstring("as planned"));
    for (const nn::Parameter& p : net->parameters())
      for (int r = 0; r < 2; ++r) p.replica(r).zero_grad();
    {
      const auto guard = sharded.no_sync();
      pass(1);
    }
    pass(0.5);
    nn::clip_grad_norm_(net->parameters(), 0.7);
    for (const nn::Parameter& p : net->parameters())
      for (int r = 0; r < 2; ++r) gradients[offload].push_back(p.replica(r).grad().cpu());
  }
  for (std::size_t i = 0; i < gradients[0].size(); ++i)
    CHECK(allclose(gradients[1][i], gradients[0][i], 1e-5, 1e-6));
}
