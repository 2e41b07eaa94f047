#pragma once
// Models that several benchmarks use. models.py has the same models with PyTorch.
#include "tapestry/tapestry.h"

namespace tapestry::bench {

// A small plain CNN with 2.3 MB of gradients.
struct Cnn : nn::Module {
  nn::Conv2d& conv1 = add<nn::Conv2d>("conv1", {.in_channels = 1, .out_channels = 32, .kernel_size = 5});
  nn::Conv2d& conv2 = add<nn::Conv2d>("conv2", {.in_channels = 32, .out_channels = 64, .kernel_size = 5});
  nn::Linear& fc1 = add<nn::Linear>("fc1", {.in_features = 1024, .out_features = 512});
  nn::Linear& fc2 = add<nn::Linear>("fc2", {.in_features = 512, .out_features = 10});
  Tensor forward(const Tensor& x) override {
    Tensor h = max_pool2d(conv1(x).relu(), {.kernel_size = 2});
    h = max_pool2d(conv2(h).relu(), {.kernel_size = 2});
    return fc2(fc1(h.flatten(1)).relu());
  }
};

// An MLP that communicates much and computes little: four layers with 40 MB of gradients.
struct WideMlp : nn::Module {
  nn::Linear& fc1 = add<nn::Linear>("fc1", {.in_features = 784, .out_features = 2048});
  nn::Linear& fc2 = add<nn::Linear>("fc2", {.in_features = 2048, .out_features = 2048});
  nn::Linear& fc3 = add<nn::Linear>("fc3", {.in_features = 2048, .out_features = 2048});
  nn::Linear& fc4 = add<nn::Linear>("fc4", {.in_features = 2048, .out_features = 10});
  Tensor forward(const Tensor& x) override { return fc4(fc3(fc2(fc1(x).relu()).relu()).relu()); }
};

// A language model with GPT-2's architecture (pre-norm, GELU).
template <std::int64_t kWidth, std::int64_t kBlocks>
struct GptOf : nn::Module {
  static constexpr std::int64_t kWords = 96, kLength = 128, kHeads = 8;

  struct Block : nn::Module {
    nn::LayerNorm& ln1 = add<nn::LayerNorm>("ln1", {.normalized_shape = {kWidth}});
    nn::Linear& qkv = add<nn::Linear>("qkv", {.in_features = kWidth, .out_features = 3 * kWidth});
    nn::Linear& proj = add<nn::Linear>("proj", {.in_features = kWidth, .out_features = kWidth});
    nn::LayerNorm& ln2 = add<nn::LayerNorm>("ln2", {.normalized_shape = {kWidth}});
    nn::Linear& fc1 = add<nn::Linear>("fc1", {.in_features = kWidth, .out_features = 4 * kWidth});
    nn::Linear& fc2 = add<nn::Linear>("fc2", {.in_features = 4 * kWidth, .out_features = kWidth});
    Tensor attend(const Tensor& x) {
      const std::int64_t n = x.size(0), length = x.size(1);
      const auto heads = [&](const Tensor& t) {
        return t.view({n, length, kHeads, kWidth / kHeads}).transpose(1, 2);
      };
      const auto parts = qkv(x).chunk(3, 2);
      const Tensor y = scaled_dot_product_attention(heads(parts[0]), heads(parts[1]), heads(parts[2]),
                                                    {.is_causal = true});
      return proj(y.transpose(1, 2).reshape({n, length, kWidth}));
    }
    Tensor forward(const Tensor& x) override {
      const Tensor h = x + attend(ln1(x));
      return h + fc2(gelu(fc1(ln2(h))));
    }
  };

  nn::Embedding& words = add<nn::Embedding>("words", {.num_embeddings = kWords, .embedding_dim = kWidth});
  nn::Embedding& places = add<nn::Embedding>("places", {.num_embeddings = kLength, .embedding_dim = kWidth});
  nn::ModuleList& blocks = add<nn::ModuleList>("blocks");
  nn::LayerNorm& ln = add<nn::LayerNorm>("ln", {.normalized_shape = {kWidth}});
  nn::Linear& head = add<nn::Linear>("head", {.in_features = kWidth, .out_features = kWords, .bias = false});
  GptOf() {
    for (std::int64_t i = 0; i < kBlocks; ++i) blocks.append<Block>();
  }
  // The logits of the next word at each position, shape (batch * length, words).
  Tensor forward(const Tensor& ids) override {
    Tensor x = words(ids) + places(arange(ids.size(1)));
    for (nn::Module* block : blocks) x = (*block)(x);
    return head(ln(x)).view({-1, kWords});
  }
};
using Gpt = GptOf<256, 4>;       // 3.2 million parameters
using DeepGpt = GptOf<128, 24>;  // 4.8 million parameters

}  // namespace tapestry::bench
