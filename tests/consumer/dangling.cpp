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

int main() {
  Towers model;
  return static_cast<int>(model(tapestry::ones({2, 4})).sum().item());
}
