// Counts the nodes of captured steps. A kernel more in a step is time that every replay pays.
#include "tapestry/core/cuda/capture.h"
#include "tests/device/emulated/device.h"
#include "tests/support/catch.h"

using namespace tapestry;

namespace {

const Device kGpu{DeviceType::cuda, 0};

/// While it exists, kernels are recorded and do not run: the sizes here are too large for the emulator.
struct RecordOnly {
  RecordOnly() { cuda_emulator::options().record_only = true; }
  ~RecordOnly() { cuda_emulator::options().record_only = false; }
};

struct Mlp : nn::Module {
  nn::Linear& fc1 = add<nn::Linear>("fc1", {.in_features = 784, .out_features = 256});
  nn::Linear& fc2 = add<nn::Linear>("fc2", {.in_features = 256, .out_features = 128});
  nn::Linear& fc3 = add<nn::Linear>("fc3", {.in_features = 128, .out_features = 10});
  Tensor forward(const Tensor& x) override {
    return feed_forward(linear_relu(x, fc1.weight, fc1.bias), fc2.weight, fc2.bias, fc3.weight, fc3.bias);
  }
};

template <class Optimizer>
std::int64_t nodes_of_step() {
  const RecordOnly record_only;
  Mlp net;
  net.to(kGpu);
  const Tensor x = zeros({128, 784}, kGpu), target = zeros({128}, {DType::i64, kGpu});
  typename Optimizer::Options options{.lr = 0.01};
  if constexpr (requires { options.momentum; }) options.momentum = 0.9;
  Optimizer optimizer(net.parameters(), options);
  Tensor loss;
  const auto step = [&] {
    optimizer.zero_grad();
    loss = cross_entropy_(net(x), target);
    loss.backward();
    optimizer.step();
  };
  step();
  synchronize(kGpu);
  cuda_emulator::take_launches();
  const auto captured = cuda::capture(step, {.warm_up = 0});
  synchronize(kGpu);
  CHECK(cuda_emulator::take_launches().empty());  // a capture runs nothing
  auto replayed = cuda::capture(step, {.warm_up = 0});
  replayed();
  synchronize(kGpu);
  for (const auto& launch : cuda_emulator::take_launches()) UNSCOPED_INFO(launch.kernel);
  CHECK(captured.nodes() == 20);
  return captured.nodes();
}

}  // namespace

// The goal is 14. What stands between: two reductions of split products, the derivative of the first relu,
// the gradient 1 of the loss, the mean of the losses, and the sums of three bias gradients.
TEST_CASE("a training step of an MLP has 20 nodes") {
  testing::emulated_gpus();
  CHECK(nodes_of_step<optim::SGD>() == nodes_of_step<optim::AdamW>());
}
