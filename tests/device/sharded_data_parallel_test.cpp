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

}  // namespace

TEST_CASE("sharded over two CUDA devices, a model trains as on the CPU alone") {
  if (no_gpu(2)) return;
  const auto alone = make();
  const Trained expected = train(*alone, {5, 6}, {5, 4}, [&](const Tensor& x, const Tensor& target) {
    return mse_loss((*alone)(x), target);
  });
  for (const bool loss_there : {false, true}) {
    CAPTURE(loss_there);
    const auto net = make();
    // The shards are exchanged through the host, because fake GPUs have no NCCL.
    ShardedDataParallel sharded(*net, {"cuda:0", "cuda:1"},
                                {.units = {&net->fc1, &net->fc2}, .backend = "local"});
    CHECK(net->fc2.weight.replica(1).device() == Device("cuda:1"));
    CHECK(net->fc2.weight.replica(1).size(0) == 4);  // of 9 rows
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
