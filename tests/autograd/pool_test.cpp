#include "tapestry/autograd/ops/pool.h"

#include <functional>
#include <limits>

#include "tapestry/autograd/ops.h"
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
Tensor images() { return zeros({2, 3, 4, 5}); }

}  // namespace

GOLDEN_OP("max_pool2d", "pool", [](const OpCase& c) { return max_pool2d(c[0], params(c)); });
GOLDEN_OP("avg_pool2d", "pool", [](const OpCase& c) { return avg_pool2d(c[0], params(c)); });
GOLDEN_OP("adaptive_avg_pool2d", "pool",
          [](const OpCase& c) { return adaptive_avg_pool2d(c[0], c.pair("output_size")); });

BAD_INPUT("max_pool2d", "input has shape [4, 5]", [] {
  return max_pool2d(zeros({4, 5}), {.kernel_size = 2});
});
BAD_INPUT("max_pool2d", "kernel_size (0, 0)", [] { return max_pool2d(images(), {}); });
BAD_INPUT("max_pool2d", "a window of (5, 5) with padding (0, 0) and dilation (1, 1) does not fit",
          [] { return max_pool2d(images(), {.kernel_size = 5}); });
BAD_INPUT("max_pool2d", "padding (2, 0), expected from 0 to half", [] {
  return max_pool2d(images(), {.kernel_size = 2, .padding = {2, 0}});
});
BAD_INPUT("max_pool2d", "padding (4611686018427387904, 0)", [] {
  return max_pool2d(images(), {.kernel_size = 2, .padding = {std::int64_t{1} << 62, 0}});
});
BAD_INPUT("max_pool2d", "dilation (9223372036854775807, 9223372036854775807)", [] {
  return max_pool2d(images(), {.kernel_size = 3, .dilation = std::numeric_limits<std::int64_t>::max()});
});
BAD_INPUT("max_pool2d", "stride (-1, 1)", [] {
  return max_pool2d(images(), {.kernel_size = 2, .stride = {-1, 1}});
});
BAD_INPUT("max_pool2d", "without pixels", [] { return max_pool2d(zeros({2, 3, 0, 5}), {.kernel_size = 1}); });
BAD_INPUT("max_pool2d", "dilation (0, 1)", [] {
  return max_pool2d(images(), {.kernel_size = 2, .dilation = {0, 1}});
});
BAD_INPUT("avg_pool2d", "input has shape [5]", [] { return avg_pool2d(zeros({5}), {.kernel_size = 2}); });
BAD_INPUT("avg_pool2d", "dilation (2, 1)", [] {
  return avg_pool2d(images(), {.kernel_size = 2, .dilation = {2, 1}});
});
BAD_INPUT("avg_pool2d", "padding (2, 2)",
          [] { return avg_pool2d(images(), {.kernel_size = 3, .padding = 2}); });
BAD_INPUT("avg_pool2d", "does not fit", [] { return avg_pool2d(images(), {.kernel_size = {1, 6}}); });
BAD_INPUT("adaptive_avg_pool2d", "output size (0, 2)", [] { return adaptive_avg_pool2d(images(), {0, 2}); });
BAD_INPUT("adaptive_avg_pool2d", "input has shape [4, 5]", [] {
  return adaptive_avg_pool2d(zeros({4, 5}), 2);
});

TEST_CASE("pools: a channels-last input gives a channels-last result, and the same numbers") {
  const Tensor x = randn({2, 45, 9, 67});
  const auto check = [&](const std::function<Tensor(const Tensor&)>& pool) {
    const Tensor plain = x.clone().set_requires_grad();
    const Tensor last = x.contiguous(MemoryFormat::channels_last).set_requires_grad();
    const Tensor y = pool(plain), z = pool(last), g = randn(y.sizes());
    CHECK(y.memory_format() == MemoryFormat::contiguous);
    CHECK(z.memory_format() == MemoryFormat::channels_last);
    CHECK(allclose(y, z, 1e-6, 1e-6));
    y.backward(g);
    z.backward(g);
    CHECK(last.grad().memory_format() == MemoryFormat::channels_last);
    CHECK(allclose(plain.grad(), last.grad(), 1e-6, 1e-6));
  };
  for (const std::int64_t stride : {1, 2, 3}) {
    const Pool2dParams window{.kernel_size = 3, .stride = stride, .padding = 1};
    check([&](const Tensor& t) { return max_pool2d(t, window); });
    check([&](const Tensor& t) { return avg_pool2d(t, window); });
  }
  check([](const Tensor& t) {
    return max_pool2d(t, {.kernel_size = {3, 1}});
  });  // the stride defaults to kernel_size, so the windows do not overlap
  check([](const Tensor& t) { return adaptive_avg_pool2d(t, {4, 5}); });
}

TEST_CASE("max_pool2d: a window larger than a byte can number") {
  for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
    const Tensor x = randn({2, 3, 40, 36}).contiguous(format).set_requires_grad();
    const Tensor y = max_pool2d(x, {.kernel_size = {20, 18}});
    y.sum().backward();
    CHECK(allclose(y.detach(), x.detach().reshape({2, 3, 2, 20, 2, 18}).max(5).first.max(3).first));
    // The sum of the gradient must be the number of windows: only one element per window gets 1.
    CHECK(x.grad().sum().item() == 2 * 3 * 2 * 2);
    CHECK(allclose((x.grad() * x.detach()).sum(), y.detach().sum(), 1e-5));
  }
}

TEST_CASE("max_pool2d: a window that sees nothing but padding is -inf and gets no gradient") {
  const Tensor x = ones({1, 1, 3, 3}).set_requires_grad();
  const Tensor y = max_pool2d(x, {.kernel_size = 2, .padding = 1, .dilation = 4});
  REQUIRE(y.numel() == 1);
  CHECK(y.item() == -std::numeric_limits<double>::infinity());
  y.backward();
  CHECK(allclose(x.grad(), zeros({1, 1, 3, 3})));
}
