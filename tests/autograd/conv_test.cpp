#include "tapestry/autograd/ops/conv.h"
#include "tapestry/autograd/ops/creation.h"
#include "tests/support/op_case.h"

using namespace tapestry;
using namespace tapestry::test;

namespace {
Tensor images(const Shape& sizes = {1, 4, 5, 5}) { return zeros(sizes); }
}  // namespace

GOLDEN_OP("conv2d", "conv", [](const OpCase& c) {
  return conv2d(c[0], c[1], c[2],
                {.stride = c.pair("stride", 1),
                 .padding = c.pair("padding", 0),
                 .dilation = c.pair("dilation", 1),
                 .groups = c.integer("groups", 1)});
});
BAD_INPUT("conv2d", "input has shape [4, 5, 5], expected 4-d", [] {
  return conv2d(images({4, 5, 5}), zeros({2, 4, 3, 3}));
});
BAD_INPUT("conv2d", "weight has shape [2, 4, 3], expected 4-d", [] {
  return conv2d(images(), zeros({2, 4, 3}));
});
BAD_INPUT("conv2d", "has 4 channels", [] { return conv2d(images(), zeros({2, 3, 3, 3})); });
BAD_INPUT("conv2d", "3 groups do not divide", [] {
  return conv2d(images(), zeros({3, 4, 3, 3}), {}, {.groups = 3});
});
BAD_INPUT("conv2d", "bias has shape [3], expected [2]", [] {
  return conv2d(images(), zeros({2, 4, 3, 3}), zeros({3}));
});
BAD_INPUT("conv2d", "stride (0, 1)", [] {
  return conv2d(images(), zeros({2, 4, 3, 3}), {}, {.stride = Pair(0, 1)});
});
BAD_INPUT("conv2d", "padding (-1, -1)", [] {
  return conv2d(images(), zeros({2, 4, 3, 3}), {}, {.padding = -1});
});
BAD_INPUT("conv2d", "dilation (1, 0)", [] {
  return conv2d(images(), zeros({2, 4, 3, 3}), {}, {.dilation = Pair(1, 0)});
});
BAD_INPUT("conv2d", "does not fit", [] {
  return conv2d(images(), zeros({2, 4, 3, 3}), {}, {.dilation = 3});
});
BAD_INPUT("conv2d", "an empty window", [] { return conv2d(images(), zeros({2, 4, 0, 3})); });
BAD_INPUT("conv2d", "weight has dtype float64", [] {
  return conv2d(images(), zeros({2, 4, 3, 3}, kFloat64));
});
