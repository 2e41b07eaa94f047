#pragma once
// A model with two parts that can be on different devices.
#include "tapestry/tapestry.h"

namespace apps {

namespace nn = tapestry::nn;

struct LargeModel : nn::Module {
  nn::Sequential& part1 = add<nn::Sequential>(
      "part1",
      nn::Conv2d::Options{.in_channels = 3, .out_channels = 64, .kernel_size = 7, .stride = 2, .padding = 3},
      nn::ReLU::Options{}, nn::MaxPool2d::Options{.kernel_size = 3, .stride = 2, .padding = 1},
      // Pools images of any size to 64 channels of 4x4, since the next layer takes 1024 features.
      nn::AdaptiveAvgPool2d::Options{.output_size = 4}, nn::Flatten::Options{},
      nn::Linear::Options{.in_features = 1024, .out_features = 512});
  nn::Sequential& part2 = add<nn::Sequential>(
      "part2", nn::ReLU::Options{}, nn::Linear::Options{.in_features = 512, .out_features = 256},
      nn::ReLU::Options{}, nn::Linear::Options{.in_features = 256, .out_features = 10});

  LargeModel(tapestry::Device first, tapestry::Device second) : first_(first), second_(second) {
    part1.to(first);
    part2.to(second);
  }

  tapestry::Tensor forward(const tapestry::Tensor& x) override {
    const tapestry::Tensor h = part1(x.to(first_));
    return part2(h.to(second_));  // copies activations; backward copies their gradients back
  }

 private:
  tapestry::Device first_, second_;
};

}  // namespace apps
