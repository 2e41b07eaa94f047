#pragma once
// Small models of several kinds, and a training step that works on any device.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tapestry/tapestry.h"

namespace device_tests {

namespace nn = tapestry::nn;
using tapestry::Device, tapestry::DType, tapestry::Shape, tapestry::Tensor;

/// A convolution, a linear layer and a softmax.
struct Demo : nn::Module {
  nn::Conv2d& conv = add<nn::Conv2d>("conv", {.in_channels = 3, .out_channels = 4, .kernel_size = 3});
  nn::Linear& fc = add<nn::Linear>("fc", {.in_features = 4 * 6 * 6, .out_features = 10});
  Tensor forward(const Tensor& x) override { return softmax(fc(conv(x).relu().flatten(1)), 1); }
};

/// Two convolutions with batch norm and pooling, then two linear layers.
struct Cnn : nn::Module {
  nn::Conv2d& conv1 =
      add<nn::Conv2d>("conv1", {.in_channels = 3, .out_channels = 5, .kernel_size = 3, .padding = 1});
  nn::BatchNorm2d& bn1 = add<nn::BatchNorm2d>("bn1", {.num_features = 5});
  nn::Conv2d& conv2 = add<nn::Conv2d>("conv2", {.in_channels = 5, .out_channels = 8, .kernel_size = 3});
  nn::BatchNorm2d& bn2 = add<nn::BatchNorm2d>("bn2", {.num_features = 8});
  nn::Linear& fc1 = add<nn::Linear>("fc1", {.in_features = 8, .out_features = 16});
  nn::Linear& fc2 = add<nn::Linear>("fc2", {.in_features = 16, .out_features = 10});
  Tensor forward(const Tensor& x) override {
    Tensor y = max_pool2d(bn1(conv1(x)).relu(), {.kernel_size = 2});
    y = adaptive_avg_pool2d(bn2(conv2(y)).relu(), 1).flatten(1);
    return fc2(fc1(y).gelu());
  }
};

/// Pre-norm transformer block: attention and two linear layers, each preceded by a layer norm (Vaswani et al.
/// 2017, Xiong et al. 2020).
struct Block : nn::Module {
  nn::LayerNorm& norm1 = add<nn::LayerNorm>("norm1", {.normalized_shape = 16});
  nn::MultiheadAttention& attention =
      add<nn::MultiheadAttention>("attention", {.embed_dim = 16, .num_heads = 2, .batch_first = true});
  nn::LayerNorm& norm2 = add<nn::LayerNorm>("norm2", {.normalized_shape = 16});
  nn::Linear& up = add<nn::Linear>("up", {.in_features = 16, .out_features = 32});
  nn::Linear& down = add<nn::Linear>("down", {.in_features = 32, .out_features = 16});
  Tensor forward(const Tensor& x) override {
    const Tensor n = norm1(x);
    const Tensor y = x + attention(n, n, n, {.need_weights = false, .is_causal = true}).first;
    return y + down(up(norm2(y)).gelu());
  }
};
struct Transformer : nn::Module {
  nn::Embedding& tokens = add<nn::Embedding>("tokens", {.num_embeddings = 11, .embedding_dim = 16});
  nn::Embedding& places = add<nn::Embedding>("places", {.num_embeddings = 7, .embedding_dim = 16});
  Block& first = add<Block>("first");
  Block& second = add<Block>("second");
  nn::LayerNorm& norm = add<nn::LayerNorm>("norm", {.normalized_shape = 16});
  nn::Linear& head = add<nn::Linear>("head", {.in_features = 16, .out_features = 11});
  Tensor forward(const Tensor& x) override {
    const Tensor at = tapestry::arange(x.size(1), {DType::i64, x.device()});
    return head(norm(second(first(tokens(x) + places(at))))).flatten(0, 1);
  }
};

/// ResNet-18 (He et al. 2015) with one block per stage and a hundredth of the width.
struct ResidualBlock : nn::Module {
  nn::Conv2d& conv1;
  nn::BatchNorm2d& bn1;
  nn::Conv2d& conv2;
  nn::BatchNorm2d& bn2;
  nn::Conv2d* shortcut = nullptr;
  nn::BatchNorm2d* shortcut_bn = nullptr;
  ResidualBlock(std::int64_t in, std::int64_t out, std::int64_t stride)
      : conv1(add<nn::Conv2d>("conv1", {.in_channels = in,
                                        .out_channels = out,
                                        .kernel_size = 3,
                                        .stride = stride,
                                        .padding = 1,
                                        .bias = false})),
        bn1(add<nn::BatchNorm2d>("bn1", {.num_features = out})),
        conv2(add<nn::Conv2d>(
            "conv2",
            {.in_channels = out, .out_channels = out, .kernel_size = 3, .padding = 1, .bias = false})),
        bn2(add<nn::BatchNorm2d>("bn2", {.num_features = out})) {
    if (stride == 1 && in == out) return;
    shortcut = &add<nn::Conv2d>(
        "shortcut",
        {.in_channels = in, .out_channels = out, .kernel_size = 1, .stride = stride, .bias = false});
    shortcut_bn = &add<nn::BatchNorm2d>("shortcut_bn", {.num_features = out});
  }
  Tensor forward(const Tensor& x) override {
    const Tensor y = bn2(conv2(bn1(conv1(x)).relu()));
    return (y + (shortcut ? (*shortcut_bn)((*shortcut)(x)) : x)).relu();
  }
};
struct ResNet : nn::Module {
  nn::Conv2d& conv1 = add<nn::Conv2d>(
      "conv1",
      {.in_channels = 3, .out_channels = 8, .kernel_size = 7, .stride = 2, .padding = 3, .bias = false});
  nn::BatchNorm2d& bn1 = add<nn::BatchNorm2d>("bn1", {.num_features = 8});
  ResidualBlock& layer1 = add<ResidualBlock>("layer1", 8, 8, 1);
  ResidualBlock& layer2 = add<ResidualBlock>("layer2", 8, 12, 2);
  nn::Linear& fc = add<nn::Linear>("fc", {.in_features = 12, .out_features = 10});
  Tensor forward(const Tensor& x) override {
    Tensor y = max_pool2d(bn1(conv1(x)).relu(), {.kernel_size = 3, .stride = 2, .padding = 1});
    return fc(adaptive_avg_pool2d(layer2(layer1(y)), 1).flatten(1));
  }
};

struct Task {
  std::string name;
  std::function<std::unique_ptr<nn::Module>()> make;
  std::function<Tensor()> input;   // on the CPU
  std::function<Tensor()> target;  // classes
};
/// Returns one training task for each model of this file. The residual network's images are channels-last.
inline std::vector<Task> tasks() {
  const auto images = [](const Shape& sizes) {
    return [sizes] { return tapestry::randn(sizes, tapestry::kCPU); };
  };
  const auto classes = [](std::int64_t most, std::int64_t count) {
    return [=] { return tapestry::randint(0, most, {count}, {DType::i64, tapestry::kCPU}); };
  };
  return {
      {"demo", [] { return std::make_unique<Demo>(); }, images({3, 3, 8, 8}), classes(10, 3)},
      {"cnn", [] { return std::make_unique<Cnn>(); }, images({3, 3, 9, 8}), classes(10, 3)},
      {"transformer", [] { return std::make_unique<Transformer>(); },
       [] {
         return tapestry::randint(0, 11, {2, 7}, {DType::i64, tapestry::kCPU});
       },
       classes(11, 14)},
      {"channels-last residual network", [] { return std::make_unique<ResNet>(); },
       [images] {
         return images({2, 3, 17, 16})().contiguous(tapestry::MemoryFormat::channels_last);
       },
       classes(10, 2)},
  };
}

/// Runs forward, backward and the optimizer's step. Returns the loss on the device.
inline Tensor train_step(nn::Module& model, tapestry::optim::Optimizer& optimizer, const Tensor& input,
                         const Tensor& target) {
  optimizer.zero_grad();
  const Tensor loss = cross_entropy(model(input), target);
  loss.backward();
  optimizer.step();
  return loss.detach();
}

}  // namespace device_tests
