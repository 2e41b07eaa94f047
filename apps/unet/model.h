#pragma once
// A U-Net (Ronneberger, Fischer and Brox, "U-Net: convolutional networks for biomedical image segmentation",
// 2015).
#include "tapestry/tapestry.h"

namespace apps {

/// Two convolutions, each with group normalisation and SiLU.
struct Block : tapestry::nn::Module {
  Block(std::int64_t from, std::int64_t to) : in(from), out(to) {}
  const std::int64_t in, out;
  tapestry::nn::Conv2d& conv1 = add<tapestry::nn::Conv2d>(
      "conv1", {.in_channels = in, .out_channels = out, .kernel_size = 3, .padding = 1});
  tapestry::nn::GroupNorm& norm1 =
      add<tapestry::nn::GroupNorm>("norm1", {.num_groups = 8, .num_channels = out});
  tapestry::nn::Conv2d& conv2 = add<tapestry::nn::Conv2d>(
      "conv2", {.in_channels = out, .out_channels = out, .kernel_size = 3, .padding = 1});
  tapestry::nn::GroupNorm& norm2 =
      add<tapestry::nn::GroupNorm>("norm2", {.num_groups = 8, .num_channels = out});
  tapestry::Tensor forward(const tapestry::Tensor& x) override {
    return norm2(conv2(norm1(conv1(x)).silu())).silu();
  }
};

/// Two halvings of the image, two doublings, and skip connections between layers of equal size. Takes and
/// returns images (N, 1, H, W) whose sides are multiples of 4. The last convolution starts at 0, so an
/// untrained model returns its input.
struct UNet : tapestry::nn::Module {
  explicit UNet(std::int64_t channels) : width(channels) {
    tapestry::NoGradGuard no_grad;
    last.weight->zero_();
    last.bias->zero_();
  }
  const std::int64_t width;
  Block& down1 = add<Block>("down1", 1, width);
  Block& down2 = add<Block>("down2", width, 2 * width);
  Block& bottom = add<Block>("bottom", 2 * width, 4 * width);
  tapestry::nn::ConvTranspose2d& grow2 = add<tapestry::nn::ConvTranspose2d>(
      "grow2", {.in_channels = 4 * width, .out_channels = 2 * width, .kernel_size = 2, .stride = 2});
  Block& up2 = add<Block>("up2", 4 * width, 2 * width);
  tapestry::nn::ConvTranspose2d& grow1 = add<tapestry::nn::ConvTranspose2d>(
      "grow1", {.in_channels = 2 * width, .out_channels = width, .kernel_size = 2, .stride = 2});
  Block& up1 = add<Block>("up1", 2 * width, width);
  tapestry::nn::Conv2d& last =
      add<tapestry::nn::Conv2d>("last", {.in_channels = width, .out_channels = 1, .kernel_size = 1});
  tapestry::nn::MaxPool2d& halve = add<tapestry::nn::MaxPool2d>("halve", {.kernel_size = 2});

  tapestry::Tensor forward(const tapestry::Tensor& x) override {
    using tapestry::cat;
    const tapestry::Tensor full = down1(x), half = down2(halve(full)), quarter = bottom(halve(half));
    const tapestry::Tensor wide = up2(cat({grow2(quarter), half}, 1));
    return x + last(up1(cat({grow1(wide), full}, 1)));
  }
};

}  // namespace apps
