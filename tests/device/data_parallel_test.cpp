// Trains with DataParallel, and a model that is split by hand, over two CUDA devices. Both must reach the
// same weights as the CPU alone.
#include "tests/device/train.h"
#include "tests/support/gpu.h"

using namespace tapestry;
using namespace tapestry::distributed;
using device_tests::compare, device_tests::train, device_tests::Trained;

namespace {

struct Net : nn::Module {
  nn::Linear& fc1 = add<nn::Linear>("fc1", {.in_features = 6, .out_features = 9});
  nn::Linear& fc2 = add<nn::Linear>("fc2", {.in_features = 9, .out_features = 4});
  std::optional<Device> second;  // device of the layer fc2, if the model is split
  Tensor forward(const Tensor& x) override {
    const Tensor h = fc1(x).relu();
    return fc2(second ? h.to(*second) : h);
  }
};

}  // namespace

TEST_CASE("two CUDA devices train as the CPU alone") {
  if (no_gpu(2)) return;
  const auto make = [] {
    manual_seed(1);
    return std::make_unique<Net>();
  };
  const auto alone = make();
  const Trained expected = train(*alone, {5, 6}, {5, 4}, [&](const Tensor& x, const Tensor& target) {
    return mse_loss((*alone)(x), target);
  });
  for (const DataParallelMode strategy : {DataParallelMode::replicated, DataParallelMode::master})
    for (const bool loss_there : {false, true}) {
      CAPTURE(strategy == DataParallelMode::master, loss_there);
      const auto net = make();
      std::optional<StreamGuard> guard;
      if (loss_there) guard.emplace(new_stream("cuda:0"));
      // The gradients are exchanged through the host, because fake GPUs have no NCCL.
      DataParallel dp(*net, {"cuda:0", "cuda:1"}, {.mode = strategy, .backend = "local"});
      compare(train(*net, {5, 6}, {5, 4},
                    [&](const Tensor& x, const Tensor& target) {
                      if (!loss_there) return mse_loss(dp(x), target.to("cuda:0"));
                      return dp.loss(std::tie(x, target), [&](const Tensor& part, const Tensor& wanted) {
                        return mse_loss((*net)(part), wanted);
                      });
                    }),
              expected);
      CHECK(net->fc1.weight->device() == Device("cuda:0"));
    }
  const auto split = make();
  split->fc1.to("cuda:0");
  split->fc2.to("cuda:1");
  split->second = Device("cuda:1");
  compare(train(*split, {5, 6}, {5, 4},
                [&](const Tensor& x, const Tensor& target) {
                  return mse_loss((*split)(x.to("cuda:0")), target.to("cuda:1"));
                }),
          expected);
}
