#pragma once
// The residual block of ResNet-18: two convolutions and a shortcut (He et al., "Deep residual learning",
// 2015).
#include "tapestry/tapestry.h"

namespace apps {

struct BasicBlock : tapestry::nn::Module {
  tapestry::nn::Conv2d& conv1;
  tapestry::nn::BatchNorm2d& bn1;
  tapestry::nn::Conv2d& conv2;
  tapestry::nn::BatchNorm2d& bn2;
  tapestry::nn::Sequential* downsample = nullptr;

  /// A 3x3 convolution with padding 1: height and width change only by the stride.
  static tapestry::nn::Conv2d::Options conv(std::int64_t in, std::int64_t out, std::int64_t stride) {
    return {.in_channels = in,
            .out_channels = out,
            .kernel_size = 3,
            .stride = stride,
            .padding = 1,
            .bias = false};
  }
  BasicBlock(std::int64_t in, std::int64_t out, std::int64_t stride)
      : conv1(add<tapestry::nn::Conv2d>("conv1", conv(in, out, stride))),
        bn1(add<tapestry::nn::BatchNorm2d>("bn1", {.num_features = out})),
        conv2(add<tapestry::nn::Conv2d>("conv2", conv(out, out, 1))),
        bn2(add<tapestry::nn::BatchNorm2d>("bn2", {.num_features = out})) {
    if (stride == 1 && in == out) return;
    downsample = &add<tapestry::nn::Sequential>("downsample");
    downsample->append<tapestry::nn::Conv2d>(
        {.in_channels = in, .out_channels = out, .kernel_size = 1, .stride = stride, .bias = false});
    downsample->append<tapestry::nn::BatchNorm2d>({.num_features = out});
  }
  tapestry::Tensor forward(const tapestry::Tensor& x) override {
    const tapestry::Tensor h = conv2(tapestry::nn::batch_norm_relu(bn1, conv1(x)));
    return tapestry::nn::batch_norm_relu(bn2, h, downsample ? (*downsample)(x) : x);
  }
};

}  // namespace apps
