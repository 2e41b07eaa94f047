// Tests that layers which are called as one operation give what their calls give, and see their hooks.
#include "tapestry/nn/layers/fused.h"

#include <vector>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/core/generator.h"
#include "tests/support/catch.h"

using namespace tapestry;

TEST_CASE("fused layers: the results of the layers, with hooks and without") {
  manual_seed(12);
  nn::Linear up({.in_features = 6, .out_features = 9}), down({.in_features = 9, .out_features = 4});
  nn::LayerNorm norm({.normalized_shape = {6}});
  nn::RMSNorm rms({.normalized_shape = {6}});
  const Tensor x = randn({5, 6}), residual = randn({5, 6});
  const auto check_all = [&] {
    CHECK(equal(nn::linear_relu(up, x), relu(up(x))));
    CHECK(equal(nn::linear_gelu(up, x, true), gelu(up(x), true)));
    CHECK(equal(nn::feed_forward(up, down, x, Activation::gelu), down(gelu(up(x)))));
    CHECK(equal(nn::add_norm(norm, x, residual).first, x + residual));
    CHECK(equal(nn::add_norm(norm, x, residual).second, norm(x + residual)));
    CHECK(equal(nn::add_norm(rms, x, residual).second, rms(x + residual)));
    CHECK(equal(nn::add_norm(norm, x, randn({6}) * 0).second, norm(x)));  // it broadcasts, as + does
  };
  check_all();
  int calls = 0;
  std::vector<nn::Module*> layers{&up, &down, &norm, &rms};
  std::vector<HookHandle> handles;
  for (nn::Module* const layer : layers)
    handles.push_back(
        layer->register_forward_hook([&](nn::Module&, const std::vector<Tensor>&, std::vector<Tensor>& out) {
          ++calls;
          out[0] = out[0] * 2;
        }));
  check_all();
  calls = 0;
  nn::feed_forward(up, down, x, Activation::relu);
  nn::add_norm(norm, x, residual);
  CHECK(calls == 3);
}

TEST_CASE("fused layers: an input that does not fit gets the layer's error") {
  nn::Linear up({.in_features = 6, .out_features = 9}), down({.in_features = 9, .out_features = 4});
  CHECK_THROWS_WITH(nn::feed_forward(up, down, randn({5, 7}), Activation::relu),
                    ContainsSubstring("[linear] expected an input of shape (..., 6)"));
}
