// Tests activation checkpointing of layers that draw random numbers or update statistics, and of whole
// blocks.
#include "tapestry/autograd/checkpoint.h"
#include "tapestry/autograd/ops.h"
#include "tapestry/core/allocator.h"
#include "tapestry/core/generator.h"
#include "tapestry/nn/nn.h"
#include "tests/support/catch.h"

using namespace tapestry;

namespace {

// A residual CNN block.
struct ResidualBlock : nn::Module {
  nn::Conv2d& conv1 =
      add<nn::Conv2d>("conv1", {.in_channels = 4, .out_channels = 4, .kernel_size = 3, .padding = 1});
  nn::BatchNorm2d& bn1 = add<nn::BatchNorm2d>("bn1", {.num_features = 4});
  nn::Conv2d& conv2 =
      add<nn::Conv2d>("conv2", {.in_channels = 4, .out_channels = 4, .kernel_size = 3, .padding = 1});
  nn::BatchNorm2d& bn2 = add<nn::BatchNorm2d>("bn2", {.num_features = 4, .momentum = std::nullopt});
  nn::Dropout& dropout = add<nn::Dropout>("dropout", {.p = 0.3});
  Tensor forward(const Tensor& x) override { return (bn2(conv2(dropout(bn1(conv1(x)).relu()))) + x).relu(); }
};

// A transformer block.
struct TransformerBlock : nn::Module {
  nn::LayerNorm& norm1 = add<nn::LayerNorm>("norm1", {.normalized_shape = {8}});
  nn::MultiheadAttention& attention = add<nn::MultiheadAttention>(
      "attention", {.embed_dim = 8, .num_heads = 2, .dropout = 0.1, .batch_first = true});
  nn::LayerNorm& norm2 = add<nn::LayerNorm>("norm2", {.normalized_shape = {8}});
  nn::Linear& up = add<nn::Linear>("up", {.in_features = 8, .out_features = 32});
  nn::Linear& down = add<nn::Linear>("down", {.in_features = 32, .out_features = 8});
  Tensor forward(const Tensor& x) override {
    const Tensor h = x + attention(norm1(x));
    return h + down(up(norm2(h)).gelu());
  }
};

template <class Block>
struct Net : nn::Module {
  std::vector<Block*> blocks;
  bool checkpointed = false;
  Net() {
    for (int i = 0; i < 3; ++i) blocks.push_back(&add<Block>("block" + std::to_string(i)));
  }
  Tensor forward(const Tensor& x) override {
    Tensor h = x;
    for (Block* b : blocks) h = checkpointed ? checkpoint(*b, h) : (*b)(h);
    return h;
  }
};

// Trains two steps and returns all parameters and buffers.
template <class Block>
std::vector<Tensor> train(bool checkpointed, DType dtype, const Shape& sizes) {
  manual_seed(7);
  Net<Block> net;
  net.to(dtype);
  net.checkpointed = checkpointed;
  optim::SGD optimizer(net.parameters(), {.lr = 0.1, .momentum = 0.9});
  const Tensor x = randn(sizes, dtype);
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    const Tensor y = net(x);
    (y * y).mean().backward();
    optimizer.step();
  }
  std::vector<Tensor> state;
  for (const auto& [name, t] : net.state_dict()) state.push_back(t.detach().clone());
  return state;
}

template <class Block>
void compare(const Shape& sizes) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    const std::vector<Tensor> plain = train<Block>(false, dtype, sizes),
                              again = train<Block>(true, dtype, sizes);
    REQUIRE(plain.size() == again.size());
    for (std::size_t i = 0; i < plain.size(); ++i) CHECK(equal(plain[i], again[i]));
  }
}

}  // namespace

TEST_CASE("a checkpointed CNN trains like one without, including statistics and dropout masks") {
  compare<ResidualBlock>({2, 4, 5, 6});
}

TEST_CASE("a checkpointed transformer trains like one without") { compare<TransformerBlock>({2, 5, 8}); }

TEST_CASE("checkpointing works with parameters that are frozen before forward or between the passes") {
  Net<TransformerBlock> net;
  net.checkpointed = true;
  net.blocks[1]->requires_grad_(false);
  const Tensor x = randn({1, 3, 8});
  net(x).sum().backward();
  CHECK(net.blocks[0]->up.weight->grad().defined());
  CHECK_FALSE(net.blocks[1]->up.weight->grad().defined());
  CHECK(net.blocks[2]->up.weight->grad().defined());

  const Tensor loss = net(x).sum();
  net.blocks[2]->requires_grad_(false);
  CHECK_THROWS_WITH(loss.backward(),
                    ContainsSubstring("[checkpoint]") && ContainsSubstring("the forward pass"));
}

TEST_CASE("an optimizer step between forward and backward is an error") {
  Net<TransformerBlock> net;
  net.checkpointed = true;
  optim::SGD optimizer(net.parameters(), {.lr = 0.1});
  const Tensor x = randn({1, 3, 8});
  net(x).sum().backward();
  const Tensor loss = net(x).sum();
  optimizer.step();
  CHECK_THROWS_WITH(loss.backward(), ContainsSubstring("[checkpoint]") && ContainsSubstring("in place"));
}

TEST_CASE("checkpointed blocks keep only their inputs") {
  const auto kept = [](auto& net, bool checkpointed, const Tensor& x) {
    net.checkpointed = checkpointed;
    const std::int64_t before = memory_stats(kCPU).allocated;
    const Tensor y = net(x);
    return static_cast<double>(memory_stats(kCPU).allocated - before) / static_cast<double>(x.nbytes());
  };
  Net<ResidualBlock> cnn;
  const Tensor images = randn({4, 4, 32, 32}), words = randn({4, 256, 8});
  CHECK(kept(cnn, false, images) >= 3 * 5);
  // A checkpointed net must keep three tensors of x's size: the inputs of blocks 2 and 3, and the result.
  CHECK(kept(cnn, true, images) < 3.1);
  Net<TransformerBlock> transformer;
  CHECK(kept(transformer, false, words) > 3 * 12);
  CHECK(kept(transformer, true, words) < 3.1);
}
