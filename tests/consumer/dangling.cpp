// g++ -O3 inlines the constructors of these modules into the user's file. It must not warn about dangling
// pointers there. compilers.cmake turns warnings into errors.
#include "tapestry/tapestry.h"

namespace nn = tapestry::nn;
using tapestry::Tensor;

struct Tower : nn::Module {
  nn::Linear& fc = add<nn::Linear>("fc", {.in_features = 4, .out_features = 4});
  Tensor forward(const Tensor& x) override { return fc(x).relu(); }
};

struct Towers : nn::Module {
  nn::Parameter& scale = param("scale", tapestry::ones({1}));
  Tower& left = add<Tower>("left");
  Tower& right = add<Tower>("right");
  Tensor forward(const Tensor& x) override { return (left(x) + right(x)) * scale; }
};

// A forward of two tensors, and layers that are made from their first options.
struct Blend : nn::Callable<Blend> {
  nn::Linear& fc = add<nn::Linear>("fc", 4, 4);
  nn::Conv2d& conv = add<nn::Conv2d>("conv", {1, 1, 3});
  using Module::forward;  // clang warns without it
  Tensor forward(const Tensor& a, const Tensor& b) { return fc(a) + b * (fc.weight[0] + 1); }
};

int main() {
  Towers model;
  const Blend blend;
  const Tensor x = tapestry::ones({2, 4});
  return static_cast<int>((model(x) + blend(x, x)).sum().item());
}
