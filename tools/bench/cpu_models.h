#pragma once
// Models that only tools/bench_cpu times. cpu_models.py has the same models with PyTorch.
#include "tapestry/tapestry.h"

namespace tapestry::bench {

struct Demo : nn::Module {
  nn::Conv2d& conv = add<nn::Conv2d>("conv", {.in_channels = 3, .out_channels = 16, .kernel_size = 3});
  nn::Linear& fc = add<nn::Linear>("fc", {.in_features = 30 * 30 * 16, .out_features = 10});
  Tensor forward(const Tensor& x) override { return fc(conv(x).flatten(1)).softmax(1); }
};

// One LSTM layer of width 256, whose last output is classified. x is (64 steps, 32, 256).
struct Lstm : nn::Module {
  nn::LSTM& lstm = add<nn::LSTM>("lstm", {.input_size = 256, .hidden_size = 256});
  nn::Linear& fc = add<nn::Linear>("fc", {.in_features = 256, .out_features = 10});
  Tensor forward(const Tensor& x) override { return fc(lstm(x).first.select(0, -1)); }
};

// ResNet-18 for images of 64 x 64 (He et al. 2016), with 10 classes.
struct ResNet18 : nn::Module {
  struct Block : nn::Module {
    nn::Conv2d &conv1, &conv2;
    nn::BatchNorm2d &bn1, &bn2;
    nn::Conv2d* shortcut = nullptr;
    nn::BatchNorm2d* shortcut_bn = nullptr;
    Block(std::int64_t in, std::int64_t out, std::int64_t stride)
        : conv1(add_conv("conv1", in, out, 3, stride)),
          conv2(add_conv("conv2", out, out, 3, 1)),
          bn1(add<nn::BatchNorm2d>("bn1", {.num_features = out})),
          bn2(add<nn::BatchNorm2d>("bn2", {.num_features = out})) {
      if (stride == 1) return;
      shortcut = &add_conv("shortcut", in, out, 1, stride);
      shortcut_bn = &add<nn::BatchNorm2d>("shortcut_bn", {.num_features = out});
    }
    nn::Conv2d& add_conv(const char* name, std::int64_t in, std::int64_t out, std::int64_t window,
                         std::int64_t stride) {
      return add<nn::Conv2d>(name, {.in_channels = in,
                                    .out_channels = out,
                                    .kernel_size = window,
                                    .stride = stride,
                                    .padding = window / 2,
                                    .bias = false});
    }
    Tensor forward(const Tensor& x) override {
      const Tensor y = bn2(conv2(bn1(conv1(x)).relu()));
      return (y + (shortcut ? (*shortcut_bn)((*shortcut)(x)) : x)).relu();
    }
  };
  nn::Conv2d& conv = add<nn::Conv2d>(
      "conv",
      {.in_channels = 3, .out_channels = 64, .kernel_size = 7, .stride = 2, .padding = 3, .bias = false});
  nn::BatchNorm2d& bn = add<nn::BatchNorm2d>("bn", {.num_features = 64});
  nn::ModuleList& blocks = add<nn::ModuleList>("blocks");
  nn::Linear& fc = add<nn::Linear>("fc", {.in_features = 512, .out_features = 10});
  ResNet18() {
    std::int64_t width = 64;
    for (const std::int64_t out : {64, 64, 128, 128, 256, 256, 512, 512}) {
      blocks.append<Block>(width, out, width == out ? 1 : 2);
      width = out;
    }
  }
  Tensor forward(const Tensor& x) override {
    Tensor h = max_pool2d(bn(conv(x)).relu(), {.kernel_size = 3, .stride = 2, .padding = 1});
    for (nn::Module* block : blocks) h = (*block)(h);
    return fc(adaptive_avg_pool2d(h, 1).flatten(1));
  }
};

// A CNN of four depthwise separable convolutions (Howard et al. 2017). x is (64, 3, 32, 32).
struct Depthwise : nn::Module {
  struct Block : nn::Module {
    nn::Conv2d &depth, &point;
    nn::BatchNorm2d &bn1, &bn2;
    Block(std::int64_t in, std::int64_t out, std::int64_t stride)
        : depth(add<nn::Conv2d>("depth", {.in_channels = in,
                                          .out_channels = in,
                                          .kernel_size = 3,
                                          .stride = stride,
                                          .padding = 1,
                                          .groups = in,
                                          .bias = false})),
          point(add<nn::Conv2d>("point",
                                {.in_channels = in, .out_channels = out, .kernel_size = 1, .bias = false})),
          bn1(add<nn::BatchNorm2d>("bn1", {.num_features = in})),
          bn2(add<nn::BatchNorm2d>("bn2", {.num_features = out})) {}
    Tensor forward(const Tensor& x) override { return bn2(point(bn1(depth(x)).relu())).relu(); }
  };
  nn::Conv2d& conv = add<nn::Conv2d>(
      "conv", {.in_channels = 3, .out_channels = 32, .kernel_size = 3, .padding = 1, .bias = false});
  nn::BatchNorm2d& bn = add<nn::BatchNorm2d>("bn", {.num_features = 32});
  nn::ModuleList& blocks = add<nn::ModuleList>("blocks");
  nn::Linear& fc = add<nn::Linear>("fc", {.in_features = 256, .out_features = 10});
  Depthwise() {
    blocks.append<Block>(32, 64, 1);
    blocks.append<Block>(64, 128, 2);
    blocks.append<Block>(128, 128, 1);
    blocks.append<Block>(128, 256, 2);
  }
  Tensor forward(const Tensor& x) override {
    Tensor h = bn(conv(x)).relu();
    for (nn::Module* block : blocks) h = (*block)(h);
    return fc(adaptive_avg_pool2d(h, 1).flatten(1));
  }
};

}  // namespace tapestry::bench
