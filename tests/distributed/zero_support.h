#pragma once
// A model with parameters of uneven sizes for tests of ZeroRedundancyOptimizer, and its data.
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tapestry/tapestry.h"
#include "tests/distributed/models.h"

namespace tapestry::test {

/// conv is channels-last. `rare` is used in every third step, and only on rank 0 in every sixth. `never` is
/// not used, and `frozen` is not trained.
struct UnevenNet : nn::Module {
  nn::Conv2d& conv = add<nn::Conv2d>("conv", {.in_channels = 3, .out_channels = 5, .kernel_size = 2});
  nn::BatchNorm2d& bn = add<nn::BatchNorm2d>("bn", {.num_features = 5});
  nn::Linear& rare = add<nn::Linear>("rare", {.in_features = 20, .out_features = 20});
  nn::Linear& never = add<nn::Linear>("never", {.in_features = 3, .out_features = 2});
  nn::Linear& frozen = add<nn::Linear>("frozen", {.in_features = 20, .out_features = 20});
  nn::Linear& wide = add<nn::Linear>("wide", {.in_features = 20, .out_features = 37});
  nn::Linear& last = add<nn::Linear>("last", {.in_features = 37, .out_features = 3});
  bool use_rare = false;

  explicit UnevenNet(DType dtype = DType::f32) {
    frozen.weight.requires_grad_(false);
    frozen.bias.requires_grad_(false);
    fill_by_formula(*this);
    to(MemoryFormat::channels_last);
    to(dtype);
  }
  Tensor forward(const Tensor& x) override {
    Tensor h = bn(conv(x)).tanh().flatten(1);
    if (use_rare) h = h + rare(h);
    return last(wide(frozen(h)).tanh());
  }
};

/// Samples of one rank in one step: f32 images (2, 3, 3, 3) and labels.
inline std::pair<Tensor, Tensor> uneven_batch(int step, int rank) {
  const Tensor x = empty({2, 3, 3, 3}), labels = empty({2}, {DType::i64, kCPU});
  for (int n = 0; n < 2; ++n) {
    labels.data<std::int64_t>()[n] = (step + rank + n) % 3;
    float* const pixels = x.data<float>() + n * 27;
    for (int i = 0; i < 27; ++i)
      pixels[i] = static_cast<float>(std::cos(0.37 * (step * 7 + rank * 3 + n + 1) * (i + 1)));
  }
  return {x, labels};
}

using MakeOptimizer = std::function<std::unique_ptr<optim::Optimizer>(
    nn::Module&, const std::shared_ptr<distributed::ProcessGroup>&)>;

}  // namespace tapestry::test
