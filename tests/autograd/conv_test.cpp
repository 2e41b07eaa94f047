#include "tapestry/autograd/ops/conv.h"

#include <limits>

#include "tapestry/autograd/ops.h"
#include "tests/support/op_case.h"

using namespace tapestry;
using namespace tapestry::test;

namespace {
Tensor images() { return zeros({2, 3, 8, 9}); }
}  // namespace

GOLDEN_OP("conv2d", "conv", [](const OpCase& c) {
  return conv2d(c[0], c[1], c[2],
                {.stride = c.pair("stride", 1),
                 .padding = c.pair("padding", 0),
                 .dilation = c.pair("dilation", 1),
                 .groups = c.integer("groups", 1)});
});
BAD_INPUT("conv2d", "input has shape [8, 9], expected 4-d (N, C, H, W) or 3-d", [] {
  return conv2d(zeros({8, 9}), zeros({4, 3, 3, 3}));
});
BAD_INPUT("conv2d", "weight has shape [4, 3, 3], expected 4-d", [] {
  return conv2d(images(), zeros({4, 3, 3}));
});
BAD_INPUT("conv2d", "has 3 channels, but weight [4, 2, 3, 3] with 1 groups takes 2", [] {
  return conv2d(images(), zeros({4, 2, 3, 3}));
});
BAD_INPUT("conv2d", "2 groups do not divide 3 input channels", [] {
  return conv2d(images(), zeros({4, 3, 3, 3}), {}, {.groups = 2});
});
BAD_INPUT("conv2d", "0 groups", [] { return conv2d(images(), zeros({4, 3, 3, 3}), {}, {.groups = 0}); });
BAD_INPUT("conv2d", "bias has shape [3], expected [4]", [] {
  return conv2d(images(), zeros({4, 3, 3, 3}), zeros({3}));
});
BAD_INPUT("conv2d", "a kernel that spans 9 pixels does not fit an input height of 8", [] {
  return conv2d(images(), zeros({4, 3, 9, 3}));
});
BAD_INPUT("conv2d", "spans 11 pixels does not fit an input width of 9 with padding 0", [] {
  return conv2d(images(), zeros({4, 3, 1, 3}), {}, {.dilation = {1, 5}});
});
BAD_INPUT("conv2d", "stride (1, 0)", [] {
  return conv2d(images(), zeros({4, 3, 3, 3}), {}, {.stride = {1, 0}});
});
BAD_INPUT("conv2d", "padding (-1, 0)", [] {
  return conv2d(images(), zeros({4, 3, 3, 3}), {}, {.padding = {-1, 0}});
});
BAD_INPUT("conv2d", "dilation (0, 1)", [] {
  return conv2d(images(), zeros({4, 3, 3, 3}), {}, {.dilation = {0, 1}});
});
BAD_INPUT("conv2d", "padding (9223372036854775807, 9223372036854775807)", [] {
  return conv2d(images(), zeros({4, 3, 3, 3}), {}, {.padding = std::numeric_limits<std::int64_t>::max()});
});
BAD_INPUT("conv2d", "dilation (4611686018427387904, 1)", [] {
  return conv2d(images(), zeros({4, 3, 3, 3}), {}, {.dilation = {std::int64_t{1} << 62, 1}});
});
BAD_INPUT("conv2d", "an empty window", [] { return conv2d(images(), zeros({2, 3, 0, 3})); });
BAD_INPUT("conv2d", "weight has dtype float64", [] {
  return conv2d(images(), zeros({4, 3, 3, 3}, DType::f64));
});

TEST_CASE("conv2d: a channels-last input gives a channels-last result and gradient") {
  const Tensor x = randn({2, 5, 6, 7}), w = randn({4, 5, 3, 3}), b = randn({4});
  const Tensor plain = x.clone().set_requires_grad();
  const Tensor last = x.contiguous(MemoryFormat::channels_last).set_requires_grad();
  const Tensor y = conv2d(plain, w, b), z = conv2d(last, w, b);
  CHECK(y.memory_format() == MemoryFormat::contiguous);
  CHECK(z.memory_format() == MemoryFormat::channels_last);
  CHECK(allclose(y, z, 1e-5, 1e-5));
  y.pow(2.0).sum().backward();
  z.pow(2.0).sum().backward();
  CHECK(last.grad().memory_format() == MemoryFormat::channels_last);
  CHECK(allclose(plain.grad(), last.grad(), 1e-4, 1e-4));
}

TEST_CASE("conv2d: a gradient has the same values whether it is computed alone or together with the others") {
  const Tensor x = randn({3, 4, 6, 5}), w = randn({6, 4, 3, 2}), b = randn({6});
  const auto gradients = [&](bool dx, bool dw, bool db) {
    const Tensor inputs[] = {x.clone().set_requires_grad(dx), w.clone().set_requires_grad(dw),
                             b.clone().set_requires_grad(db)};
    conv2d(inputs[0], inputs[1], inputs[2], {.padding = 1}).pow(2.0).sum().backward();
    return std::vector{inputs[0].grad(), inputs[1].grad(), inputs[2].grad()};
  };
  const auto all = gradients(true, true, true);
  for (int i = 0; i < 3; ++i) {
    const auto one = gradients(i == 0, i == 1, i == 2);
    for (int j = 0; j < 3; ++j) {
      REQUIRE(one[j].defined() == (i == j));
      if (i == j) CHECK(allclose(one[j], all[j], 1e-5, 1e-4));
    }
  }
}
