#pragma once
// Models that more than one program here times; models.py has the same in PyTorch.
#include "tapestry/tapestry.h"

namespace tapestry::bench {

// A small plain CNN: 2.3 MB of gradients.
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

// Much to communicate for what it computes: 40 MB of gradients in four layers.
struct WideMlp : nn::Module {
  nn::Linear& fc1 = add<nn::Linear>("fc1", {.in_features = 784, .out_features = 2048});
  nn::Linear& fc2 = add<nn::Linear>("fc2", {.in_features = 2048, .out_features = 2048});
  nn::Linear& fc3 = add<nn::Linear>("fc3", {.in_features = 2048, .out_features = 2048});
  nn::Linear& fc4 = add<nn::Linear>("fc4", {.in_features = 2048, .out_features = 10});
  Tensor forward(const Tensor& x) override { return fc4(fc3(fc2(fc1(x).relu()).relu()).relu()); }
};

}  // namespace tapestry::bench
