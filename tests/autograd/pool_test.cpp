#include "tapestry/autograd/ops/pool.h"

#include <functional>
#include <limits>
#include <vector>

#include "tapestry/autograd/engine.h"
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
BAD_INPUT("adaptive_avg_pool2d", "output size (-1, 2)", [] {
  return adaptive_avg_pool2d(images(), {-1, 2});
});
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

TEST_CASE(
    "max_pool2d: 2 x 2 windows in f32 and bf16 agree with f64 in values and places, NaN and ties included") {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  struct Size {
    std::int64_t h, w;
  };
  // Rows of 4, 7, 8, 9 and 17 windows, with and without a rest; an odd number of rows of 4.
  const auto check = [&](const Size& s, DType dtype) {
    CAPTURE(s.h, s.w, dtype);
    const Tensor x = randint(0, 4, {3, 5, s.h, s.w}).to(dtype);  // many ties
    const std::int64_t n = x.numel();
    for (std::int64_t i = 0; i < n; i += 7) x.view({n})[i].fill_(i % 2 ? kNan : -kInfinity);
    x[2][3].fill_(-kInfinity);
    const Tensor leaf = x.clone().set_requires_grad(), wide = x.to(kFloat64).set_requires_grad();
    const Tensor y = max_pool2d(leaf, {.kernel_size = 2}), want = max_pool2d(wide, {.kernel_size = 2});
    CHECK(allclose(y.to(kFloat64), want, 0, 0, true));
    const NoGradGuard guard;
    CHECK(equal(isnan(max_pool2d(x, {.kernel_size = 2})), isnan(want)));
    const Tensor g = randn(y.sizes()).to(dtype);
    y.backward(g);
    want.backward(g.to(kFloat64));
    CHECK(equal(leaf.grad().to(kFloat64), wide.grad()));
  };
  for (const Size s : {Size{8, 8}, {6, 9}, {5, 8}, {4, 14}, {2, 16}, {7, 19}, {9, 35}})
    for (const DType dtype : {kFloat32, DType::bf16}) check(s, dtype);
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

TEST_CASE(
    "max_pool2d: windows of 254 to 257 elements give the gradient to every place, the last one included") {
  // Places are bytes up to 255 elements, and the largest byte means "no element".
  for (const std::int64_t size : {254, 255, 256, 257})
    for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last})
      for (const bool tall : {false, true}) {
        CAPTURE(size, format == MemoryFormat::channels_last, tall);
        const Shape sizes = tall ? Shape{size, 3, size, 1} : Shape{size, 3, 1, size};
        // Image i has its largest element at place i.
        const Tensor x = zeros(sizes);
        for (std::int64_t i = 0; i < size; ++i)
          for (std::int64_t c = 0; c < 3; ++c) x[i][c].view({size})[i].fill_(1.0 + static_cast<double>(c));
        const Tensor leaf = x.contiguous(format).set_requires_grad();
        const Tensor y = max_pool2d(leaf, {.kernel_size = tall ? Pair(size, 1) : Pair(1, size)});
        CHECK(
            equal(y.detach().reshape({size, 3}), tensor({1.0f, 2.0f, 3.0f}).expand({size, 3}).contiguous()));
        y.sum().backward();
        CHECK(equal(leaf.grad().contiguous(), (x > 0).to(kFloat32)));
      }
}

TEST_CASE(
    "pools: pixels that no window covers get gradient 0, also on one side and in memory that was used "
    "before") {
  struct Size {
    std::int64_t h, w;
  };
  const auto check = [](const Tensor& x, Pair kernel, const std::function<Tensor(const Tensor&)>& pool) {
    const Tensor leaf = x.set_requires_grad();
    {
      // The pools' result and gradient are allocated in this memory.
      std::vector<Tensor> poison;
      for (int i = 0; i < 8; ++i) poison.push_back(full(x.sizes(), std::numeric_limits<double>::quiet_NaN()));
    }
    const Tensor y = pool(leaf);
    {
      std::vector<Tensor> poison;
      for (int i = 0; i < 8; ++i) poison.push_back(full(x.sizes(), std::numeric_limits<double>::quiet_NaN()));
    }
    y.backward(ones(y.sizes()));
    const Tensor grad = leaf.grad().contiguous();
    const std::int64_t h = x.size(2), w = x.size(3), rows = h / kernel.h * kernel.h,
                       cols = w / kernel.w * kernel.w;
    CHECK(grad.sum().item() == Approx(y.numel()));
    if (rows < h) CHECK(equal(grad.narrow(2, rows, h - rows), zeros({x.size(0), x.size(1), h - rows, w})));
    if (cols < w) CHECK(equal(grad.narrow(3, cols, w - cols), zeros({x.size(0), x.size(1), h, w - cols})));
  };
  for (const Size s : {Size{4, 5}, {5, 4}, {5, 5}, {4, 4}, {4, 7}, {7, 6}})
    for (const Pair kernel : {Pair(2), Pair(2, 3), Pair(3, 2)})
      for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
        CAPTURE(s.h, s.w, kernel.h, kernel.w, format == MemoryFormat::channels_last);
        const auto images = [&] { return randn({3, 5, s.h, s.w}).contiguous(format); };
        check(images(), kernel, [=](const Tensor& t) { return max_pool2d(t, {.kernel_size = kernel}); });
        check(images(), kernel, [=](const Tensor& t) { return avg_pool2d(t, {.kernel_size = kernel}); });
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

TEST_CASE("max_pool2d: a window in the padding gets no gradient in a pass with create_graph either") {
  // Places of the small window are u8, those of the large one i32.
  for (const std::int64_t height : {2, 128}) {
    const Tensor x = randn({1, 1, height + 2, 1}).set_requires_grad();
    const Tensor y =
        max_pool2d(x, {.kernel_size = {height, 2}, .stride = 1, .padding = {0, 1}, .dilation = {1, 2}});
    REQUIRE(y.sizes() == Shape{1, 1, 3, 1});
    CHECK(equal(y.detach(), full({1, 1, 3, 1}, -std::numeric_limits<double>::infinity())));
    CHECK(equal(autograd::grad({y.sum()}, {x}, {.create_graph = true})[0].detach(), zeros_like(x.detach())));
  }
}
