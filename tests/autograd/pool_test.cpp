#include "tapestry/autograd/ops/pool.h"
#include "tapestry/autograd/ops/creation.h"
#include "tests/support/op_case.h"

using namespace tapestry;
using namespace tapestry::test;

namespace {
Pool2dParams params(const OpCase& c) {
  return {.kernel_size = c.pair("kernel_size"),
          .stride = c.pair("stride", 0),
          .padding = c.pair("padding", 0),
          .dilation = c.pair("dilation", 1),
          .ceil_mode = c.flag("ceil_mode", false),
          .count_include_pad = c.flag("count_include_pad", true)};
}
Tensor image() { return zeros({1, 2, 4, 5}); }
}  // namespace

GOLDEN_OP("max_pool2d", "pool", [](const OpCase& c) { return max_pool2d(c[0], params(c)); });
BAD_INPUT("max_pool2d", "input has shape [4, 5]", [] {
  return max_pool2d(zeros({4, 5}), {.kernel_size = 2});
});
BAD_INPUT("max_pool2d", "kernel_size (0, 2)",
          [] { return max_pool2d(image(), {.kernel_size = Pair(0, 2)}); });
BAD_INPUT("max_pool2d", "stride (-1, -1)",
          [] { return max_pool2d(image(), {.kernel_size = 2, .stride = -1}); });
BAD_INPUT("max_pool2d", "padding (2, 2)",
          [] { return max_pool2d(image(), {.kernel_size = 3, .padding = 2}); });
BAD_INPUT("max_pool2d", "dilation (0, 0)",
          [] { return max_pool2d(image(), {.kernel_size = 2, .dilation = 0}); });
BAD_INPUT("max_pool2d", "does not fit", [] { return max_pool2d(image(), {.kernel_size = 5}); });
BAD_INPUT("max_pool2d", "without pixels", [] { return max_pool2d(zeros({1, 2, 0, 5}), {.kernel_size = 1}); });

GOLDEN_OP("avg_pool2d", "pool", [](const OpCase& c) { return avg_pool2d(c[0], params(c)); });
BAD_INPUT("avg_pool2d", "input has shape [1, 1, 1, 4, 5]", [] {
  return avg_pool2d(zeros({1, 1, 1, 4, 5}), {.kernel_size = 2});
});
BAD_INPUT("avg_pool2d", "padding (2, 2)",
          [] { return avg_pool2d(image(), {.kernel_size = 3, .padding = 2}); });
BAD_INPUT("avg_pool2d", "only max_pool2d",
          [] { return avg_pool2d(image(), {.kernel_size = 2, .dilation = 2}); });
BAD_INPUT("avg_pool2d", "does not fit", [] { return avg_pool2d(image(), {.kernel_size = Pair(2, 6)}); });

GOLDEN_OP("adaptive_avg_pool2d", "pool",
          [](const OpCase& c) { return adaptive_avg_pool2d(c[0], c.pair("output_size")); });
BAD_INPUT("adaptive_avg_pool2d", "output size (0, 1)",
          [] { return adaptive_avg_pool2d(image(), Pair(0, 1)); });
BAD_INPUT("adaptive_avg_pool2d", "input has shape [5]", [] { return adaptive_avg_pool2d(zeros({5}), 1); });
