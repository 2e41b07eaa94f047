// Tests that layers which are called as one operation give what their calls give, and see their hooks.
#include "tapestry/nn/layers/fused.h"

#include <sstream>
#include <vector>

#include "tapestry/autograd/engine.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/core/generator.h"
#include "tapestry/nn/layers/activation.h"
#include "tapestry/nn/layers/container.h"
#include "tapestry/nn/parametrize.h"
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

namespace {

// The gradients of x, of `more` if it requires them, and of the module's parameters. The gradient of the
// result has no equal elements.
std::vector<Tensor> gradients_of(nn::Module& module, const Tensor& y, std::vector<Tensor> inputs) {
  for (nn::Parameter& p : module.parameters()) inputs.push_back(p);
  const Tensor dy = arange(y.numel()).to(y.dtype()).reshape(y.sizes()).sin();
  return autograd::grad({y}, inputs, {dy});
}
void check_same(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    CAPTURE(i);
    CHECK(allclose(a[i], b[i], 1e-5, 1e-6));
  }
}

HookHandle count_calls(nn::Module& module, int& calls) {
  return module.register_forward_hook(
      [&calls](nn::Module&, const std::vector<Tensor>&, std::vector<Tensor>&) { ++calls; });
}

}  // namespace

TEST_CASE("fused layers: convolution with relu, and its gradients") {
  manual_seed(13);
  const Tensor x = randn({2, 3, 6, 5}).set_requires_grad();
  for (const nn::Conv2d::Options& o :
       {nn::Conv2d::Options{.in_channels = 3, .out_channels = 4, .kernel_size = 3},
        nn::Conv2d::Options{
            .in_channels = 3, .out_channels = 6, .kernel_size = 3, .stride = 2, .padding = 1, .groups = 3},
        nn::Conv2d::Options{.in_channels = 3,
        .out_channels = 4,
        .kernel_size = 3,
        .padding = "same",
        .dilation = 2,
        .bias = false},
        nn::Conv2d::Options{.in_channels = 3,
        .out_channels = 4,
        .kernel_size = 3,
        .padding = 1,
        .padding_mode = PadMode::reflect}}) {
    nn::Conv2d conv(o);
    const Tensor fused = nn::conv2d_relu(conv, x), parts = relu(conv(x));
    CHECK(allclose(fused, parts, 1e-5, 1e-6));
    check_same(gradients_of(conv, fused, {x}), gradients_of(conv, parts, {x}));
    int calls = 0;
    HookHandle hook = count_calls(conv, calls);
    CHECK(equal(nn::conv2d_relu(conv, x), parts));
    CHECK(calls == 1);
    hook.remove();
  }
  nn::Conv2d conv({.in_channels = 3, .out_channels = 4, .kernel_size = 3});
  CHECK_THROWS_WITH(nn::conv2d_relu(conv, randn({2, 4, 6, 5})),
                    ContainsSubstring("[conv2d] expected an input"));
}

TEST_CASE("fused layers: batch norm with relu and a residual keeps statistics and gradients") {
  manual_seed(14);
  nn::BatchNorm2d fused({.num_features = 3}), parts({.num_features = 3});
  const Tensor x = (randn({4, 3, 5, 2}) * 3 + 7).set_requires_grad(),
               residual = randn({4, 3, 5, 2}).set_requires_grad();
  for (nn::BatchNorm2d* const norm : {&fused, &parts}) {
    const NoGradGuard guard;
    norm->weight->copy_(tensor({0.5, 2.0, -1.5}));
    norm->bias->copy_(tensor({0.25, -0.5, 1.0}));
  }
  for (const bool training : {true, true, false}) {
    fused.train(training), parts.train(training);
    CAPTURE(training);
    const Tensor y = nn::batch_norm_relu(fused, x), want = relu(parts(x));
    CHECK(allclose(y, want, 1e-5, 1e-6));
    check_same(gradients_of(fused, y, {x}), gradients_of(parts, want, {x}));
    const Tensor sum = nn::batch_norm_relu(fused, x, residual), want_sum = relu(parts(x) + residual);
    CHECK(allclose(sum, want_sum, 1e-5, 1e-6));
    check_same(gradients_of(fused, sum, {x, residual}), gradients_of(parts, want_sum, {x, residual}));
    CHECK(equal(fused.num_batches_tracked, parts.num_batches_tracked));
    CHECK(allclose(fused.running_mean, parts.running_mean, 1e-6, 0));
    CHECK(allclose(fused.running_var, parts.running_var, 1e-6, 0));
  }
  CHECK(fused.num_batches_tracked->item() == 4);
  // An addition that broadcasts, as + does.
  const Tensor row = randn({2});
  CHECK(allclose(nn::batch_norm_relu(fused, x, row), relu(parts(x) + row), 1e-5, 1e-6));

  int calls = 0;
  HookHandle hook = count_calls(fused, calls);
  CHECK(equal(nn::batch_norm_relu(fused, x, residual), relu(parts(x) + residual)));
  CHECK(calls == 1);
  hook.remove();
  // SyncBatchNorm's function replaces the operation in training, and only there.
  fused.set_training_function("Doubled", [&](const Tensor& t, const Tensor&, const Tensor&, const Tensor&,
                                             const Tensor&, double, double) {
    ++calls;
    return t * 2 - 14;
  });
  fused.train(true);
  CHECK(equal(nn::batch_norm_relu(fused, x, residual), relu(x * 2 - 14 + residual)));
  CHECK(equal(nn::batch_norm_relu(fused, x), relu(x * 2 - 14)));
  CHECK(calls == 3);
  fused.train(false);
  CHECK(allclose(nn::batch_norm_relu(fused, x), relu(parts(x)), 1e-5, 1e-6));
  CHECK(calls == 3);
  CHECK_THROWS_WITH(nn::batch_norm_relu(fused, randn({4, 2, 5, 2})),
                    ContainsSubstring("[batch_norm] expected an input of shape (N, 3, H, W)"));
}

TEST_CASE("Sequential computes a layer and the activation behind it as one operation, and sees their hooks") {
  manual_seed(15);
  nn::Sequential net(
      nn::Conv2d::Options{.in_channels = 2, .out_channels = 3, .kernel_size = 3}, nn::ReLU::Options{},
      nn::ReLU::Options{}, nn::Conv2d::Options{.in_channels = 3, .out_channels = 4, .kernel_size = 2},
      nn::BatchNorm2d::Options{.num_features = 4}, nn::ReLU::Options{},
      [](const Tensor& t) { return t.flatten(1); }, nn::Linear::Options{.in_features = 24, .out_features = 5},
      nn::ReLU::Options{}, nn::Linear::Options{.in_features = 5, .out_features = 6}, nn::GELU::Options{},
      nn::Linear::Options{.in_features = 6, .out_features = 4}, nn::GELU::Options{.approximate = "tanh"});
  net.eval();
  const Tensor x = randn({3, 2, 6, 5}).set_requires_grad();
  const auto by_modules = [&] {
    Tensor y = x;
    for (nn::Module* const module : net) y = (*module)(y);
    return y;
  };
  const Tensor y = net(x), want = by_modules();
  CHECK(allclose(y, want, 1e-5, 1e-6));
  check_same(gradients_of(net, y, {x}), gradients_of(net, want, {x}));
  std::ostringstream text;
  text << y;
  CHECK_THAT(text.str(), ContainsSubstring("linear_gelu"));
  for (std::size_t i = 0; i < net.size(); ++i) {
    CAPTURE(i);
    int calls = 0;
    HookHandle hook = count_calls(net[static_cast<std::int64_t>(i)], calls);
    CHECK(allclose(net(x), want, 1e-5, 1e-6));
    CHECK(calls == 1);
    hook.remove();
  }
  struct Halved : nn::Parametrization {
    Tensor compute(const std::vector<Tensor>& originals) override { return originals[0] * 0.5; }
  };
  nn::register_parametrization(net[7], "weight", std::make_shared<Halved>());
  CHECK(allclose(net(x), by_modules(), 1e-5, 1e-6));
  CHECK_FALSE(allclose(net(x), want, 1e-3, 1e-3));
}
