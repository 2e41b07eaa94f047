// Layers that change the shape, and dropout of channels. tests/autograd compares their functions with
// PyTorch.
#include "tapestry/nn/layers/shape.h"

#include "tapestry/tapestry.h"
#include "tests/support/catch.h"

using namespace tapestry;

TEST_CASE("Unflatten, PixelShuffle and PixelUnshuffle call their functions") {
  const Tensor x = randn({2, 12, 3, 2});
  nn::Unflatten unflatten({.dim = 1, .unflattened_size = {3, -1}});
  CHECK(equal(unflatten(x), x.view({2, 3, 4, 3, 2})));
  CHECK(unflatten.str() == "Unflatten(dim=1, unflattened_size=[3, -1])");
  nn::PixelShuffle shuffle({.upscale_factor = 2});
  nn::PixelUnshuffle unshuffle({.downscale_factor = 2});
  CHECK(equal(shuffle(x), pixel_shuffle(x, 2)));
  CHECK(equal(unshuffle(shuffle(x)), x));
  CHECK(shuffle.str() == "PixelShuffle(upscale_factor=2)");
  CHECK(unshuffle.str() == "PixelUnshuffle(downscale_factor=2)");
  CHECK_THROWS_AS(nn::PixelShuffle({}), ValueError);
  CHECK_THROWS_AS(nn::PixelUnshuffle({}), ValueError);
}

TEST_CASE("layers that pad take one number, or two per dimension") {
  const Tensor x = randn({2, 3, 4, 5});
  CHECK(equal(nn::ZeroPad2d({.padding = {1, 2, 3, 4}})(x), pad(x, {1, 2, 3, 4})));
  CHECK(equal(nn::ZeroPad2d({.padding = -1})(x), x.narrow(2, 1, 2).narrow(3, 1, 3)));
  CHECK(equal(nn::ConstantPad2d({.padding = 1, .value = 2.5})(x),
              pad(x, {1, 1, 1, 1}, PadMode::constant, 2.5)));
  CHECK(equal(nn::ReflectionPad2d({.padding = 2})(x), pad(x, {2, 2, 2, 2}, PadMode::reflect)));
  CHECK(equal(nn::ReplicationPad2d({.padding = {0, 1, 2, 0}})(x), pad(x, {0, 1, 2, 0}, PadMode::replicate)));
  CHECK(equal(nn::CircularPad2d({.padding = 1})(x[0]), pad(x[0], {1, 1, 1, 1}, PadMode::circular)));
  CHECK(equal(nn::ReflectionPad1d({.padding = {1, 2}})(x[0]), pad(x[0], {1, 2}, PadMode::reflect)));
  CHECK(equal(nn::ReplicationPad3d({.padding = 1})(x), pad(x, {1, 1, 1, 1, 1, 1}, PadMode::replicate)));
  CHECK(nn::ReflectionPad2d({.padding = 1}).str() == "ReflectionPad2d(padding=(1, 1, 1, 1))");
  CHECK(nn::CircularPad1d({.padding = {1, 2}}).str() == "CircularPad1d(padding=(1, 2))");
  CHECK(nn::ConstantPad2d({.padding = 1, .value = 2.5}).str() ==
        "ConstantPad2d(padding=(1, 1, 1, 1), value=2.5)");
  CHECK_THROWS_AS(nn::ZeroPad2d({.padding = {1, 2, 3}}), ValueError);
  CHECK_THROWS_WITH(nn::ReflectionPad2d({.padding = 1})(zeros({3, 3})),
                    ContainsSubstring("expected 3 or 4 dimensions"));
}

TEST_CASE("layers that pad can be parts of a Sequential") {
  nn::Sequential net(nn::ReflectionPad2d::Options{.padding = 1},
                     nn::Conv2d::Options{.in_channels = 1, .out_channels = 2, .kernel_size = 3},
                     nn::Unflatten::Options{.dim = 1, .unflattened_size = {2, 1}});
  CHECK(net(zeros({1, 1, 4, 4})).sizes() == Shape{1, 2, 1, 4, 4});
}

TEST_CASE("Dropout1d and Dropout2d drop whole channels, in training only") {
  manual_seed(3);
  nn::Dropout2d dropout({.p = 0.25});
  const Tensor in = ones({100, 40, 2, 3}), y = dropout(in);
  CHECK(equal(y.amax({2, 3}), y.amin({2, 3})));
  CHECK(allclose(y.amax(), scalar_tensor(1 / 0.75)));
  // With 4000 channels of probability 1/4, the standard deviation of the fraction is 0.007.
  CHECK((y.amax({2, 3}) == 0).to(DType::f32).mean().item() == Approx(0.25).margin(5 * 0.007));
  const Tensor line = nn::Dropout1d({.p = 0.5})(ones({50, 7}));
  CHECK(equal(line.amax(1), line.amin(1)));
  CHECK(line.sum().item() > 0);
  CHECK(line.amin().item() == 0);
  dropout.eval();
  CHECK(equal(dropout(in), in));
  CHECK(dropout.str() == "Dropout2d(p=0.25)");
  CHECK_THROWS_AS(nn::Dropout1d({.p = 2}), ValueError);
  CHECK_THROWS_AS(dropout1d(zeros({2, 2, 2, 2})), ValueError);
}

TEST_CASE("Dropout2d passes the gradient to the channels that it keeps") {
  manual_seed(4);
  const Tensor x = ones({4, 8, 2, 2}).set_requires_grad(), y = dropout2d(x, 0.5);
  y.sum().backward();
  CHECK(equal(x.grad(), y.detach()));
}
