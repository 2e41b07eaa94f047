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
  std::string kernels;
  for (const auto& launch : cuda_emulator::take_launches()) kernels += launch.kernel + "\n";
  INFO(kernels);
  CHECK(captured.nodes() <= 14);
  CHECK(captured.nodes() == 12);
  return captured.nodes();
}

}  // namespace

// Three products forward and five backward, the loss and its gradient, and the optimizer's two launches.
// Biases, their gradients, activations, their derivatives, the loss's mean and sums of split products are
// parts of these.
TEST_CASE("a training step of an MLP has 12 nodes") {
  testing::emulated_gpus();
  CHECK(nodes_of_step<optim::SGD>() == nodes_of_step<optim::AdamW>());
}

TEST_CASE("what two nodes of a backward pass leave out changes no gradient, and hooks see all of it") {
  testing::emulated_gpus();
  manual_seed(4);
  const Tensor x = randn({5, 7}, kCPU), w1 = randn({6, 7}, kCPU), b1 = randn({6}, kCPU),
               w2 = randn({4, 6}, kCPU), b2 = randn({4}, kCPU), target = arange(5) % 4;
  struct Pass {
    std::vector<Tensor> gradients;
    Tensor hidden, of_hidden, of_loss;
  };
  enum class Sees { nothing, hidden, loss };
  const auto run = [&](Device device, Sees sees, bool twice) {
    Pass pass;
    std::vector<Tensor> leaves;
    for (const Tensor& t : {x, w1, b1, w2, b2}) leaves.push_back(t.to(device).clone().requires_grad_());
    const Tensor h = linear_relu(leaves[0], leaves[1], leaves[2]);
    Tensor y = linear(h, leaves[3], leaves[4]);
    if (twice) y = y + linear_relu(h, leaves[3]);
    const Tensor loss = cross_entropy(y, target.to(device));
    const auto keep = [](Tensor& to) {
      return [&to](const Tensor& g) {
        to = g.clone();
        return Tensor();
      };
    };
    if (sees == Sees::hidden) h.register_hook(keep(pass.of_hidden));
    if (sees == Sees::loss) loss.register_hook(keep(pass.of_loss));
    loss.backward();
    for (const Tensor& t : leaves) pass.gradients.push_back(t.grad().cpu());
    pass.hidden = h.detach().cpu();
    return pass;
  };
  const auto same_bits = [](const Pass& a, const Pass& b) {
    for (std::size_t i = 0; i < a.gradients.size(); ++i) CHECK(equal(a.gradients[i], b.gradients[i]));
  };
  for (const bool twice : {false, true}) {
    CAPTURE(twice);
    const Pass plain = run(kGpu, Sees::nothing, twice), hidden = run(kGpu, Sees::hidden, twice),
               loss = run(kGpu, Sees::loss, twice), cpu = run(kCPU, Sees::nothing, twice);
    same_bits(plain, hidden);
    same_bits(plain, loss);
    for (std::size_t i = 0; i < cpu.gradients.size(); ++i)
      CHECK(allclose(plain.gradients[i], cpu.gradients[i], 1e-5, 1e-6));
    CHECK(loss.of_loss.cpu().item() == 1);
    // A hook sees the gradient of relu's result, which is not 0 where the result is.
    const Tensor at_zeros = where(hidden.hidden == 0, hidden.of_hidden.cpu(), zeros({}));
    CHECK(at_zeros.abs().sum().item() > 0);
  }
}
