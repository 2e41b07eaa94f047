// Pools in one and three dimensions, adaptive maxima, power averages, and the inverse of maximum pools.
#include <limits>
#include <utility>

#include "tapestry/autograd/ops.h"
#include "tests/support/op_case.h"

using namespace tapestry;
using namespace tapestry::test;

namespace {

Pool1dParams one(const OpCase& c) {
  return {.kernel_size = c.integer("kernel_size"),
          .stride = c.integer("stride", 0),
          .padding = c.integer("padding", 0),
          .dilation = c.integer("dilation", 1),
          .ceil_mode = c.flag("ceil_mode", false),
          .count_include_pad = c.flag("count_include_pad", true)};
}
Pool2dParams two(const OpCase& c) {
  return {.kernel_size = c.pair("kernel_size"),
          .stride = c.pair("stride", 0),
          .padding = c.pair("padding", 0),
          .dilation = c.pair("dilation", 1),
          .ceil_mode = c.flag("ceil_mode", false)};
}
Pool3dParams three(const OpCase& c) {
  return {.kernel_size = c.dims("kernel_size"),
          .stride = c.dims("stride", Shape{}),
          .padding = c.dims("padding", Shape(0)),
          .dilation = c.dims("dilation", Shape(1)),
          .ceil_mode = c.flag("ceil_mode", false),
          .count_include_pad = c.flag("count_include_pad", true)};
}
Shape output_size(const OpCase& c) { return c.dims("output_size", Shape{}); }
Tensor lines() { return zeros({2, 3, 5}); }
Tensor volumes() { return zeros({2, 3, 4, 5, 6}); }

}  // namespace

GOLDEN_OP("max_pool1d", "pool_nd", [](const OpCase& c) { return max_pool1d(c[0], one(c)); });
GOLDEN_OP("max_pool3d", "pool_nd", [](const OpCase& c) { return max_pool3d(c[0], three(c)); });
GOLDEN_OP("max_pool1d/with_indices", "pool_nd",
          [](const OpCase& c) { return max_pool1d_with_indices(c[0], one(c)); });
GOLDEN_OP("max_pool2d/with_indices", "pool_nd",
          [](const OpCase& c) { return max_pool2d_with_indices(c[0], two(c)); });
GOLDEN_OP("max_pool3d/with_indices", "pool_nd",
          [](const OpCase& c) { return max_pool3d_with_indices(c[0], three(c)); });
GOLDEN_OP("avg_pool1d", "pool_nd", [](const OpCase& c) { return avg_pool1d(c[0], one(c)); });
GOLDEN_OP("avg_pool3d", "pool_nd", [](const OpCase& c) { return avg_pool3d(c[0], three(c)); });
GOLDEN_OP("lp_pool1d", "pool_nd",
          [](const OpCase& c) { return lp_pool1d(c[0], c.real("norm_type"), one(c)); });
GOLDEN_OP("lp_pool2d", "pool_nd",
          [](const OpCase& c) { return lp_pool2d(c[0], c.real("norm_type"), two(c)); });
GOLDEN_OP("lp_pool3d", "pool_nd",
          [](const OpCase& c) { return lp_pool3d(c[0], c.real("norm_type"), three(c)); });
GOLDEN_OP("adaptive_avg_pool1d", "pool_nd",
          [](const OpCase& c) { return adaptive_avg_pool1d(c[0], c.integer("output_size")); });
GOLDEN_OP("adaptive_avg_pool3d", "pool_nd",
          [](const OpCase& c) { return adaptive_avg_pool3d(c[0], c.dims("output_size")); });
GOLDEN_OP("adaptive_max_pool1d", "pool_nd",
          [](const OpCase& c) { return adaptive_max_pool1d(c[0], c.integer("output_size")); });
GOLDEN_OP("adaptive_max_pool2d", "pool_nd",
          [](const OpCase& c) { return adaptive_max_pool2d(c[0], c.pair("output_size")); });
GOLDEN_OP("adaptive_max_pool3d", "pool_nd",
          [](const OpCase& c) { return adaptive_max_pool3d(c[0], c.dims("output_size")); });
GOLDEN_OP("adaptive_max_pool1d/with_indices", "pool_nd",
          [](const OpCase& c) { return adaptive_max_pool1d_with_indices(c[0], c.integer("output_size")); });
GOLDEN_OP("adaptive_max_pool2d/with_indices", "pool_nd",
          [](const OpCase& c) { return adaptive_max_pool2d_with_indices(c[0], c.pair("output_size")); });
GOLDEN_OP("adaptive_max_pool3d/with_indices", "pool_nd",
          [](const OpCase& c) { return adaptive_max_pool3d_with_indices(c[0], c.dims("output_size")); });
GOLDEN_OP("max_unpool1d", "pool_nd",
          [](const OpCase& c) { return max_unpool1d(c[0], c[1], one(c), output_size(c)); });
GOLDEN_OP("max_unpool2d", "pool_nd",
          [](const OpCase& c) { return max_unpool2d(c[0], c[1], two(c), output_size(c)); });
GOLDEN_OP("max_unpool3d", "pool_nd",
          [](const OpCase& c) { return max_unpool3d(c[0], c[1], three(c), output_size(c)); });

BAD_INPUT("max_pool1d", "[max_pool1d] input has shape [5]",
          [] { max_pool1d(zeros({5}), {.kernel_size = 2}); });
BAD_INPUT("max_pool1d", "kernel_size (1, 0)", [] { max_pool1d(lines(), {}); });
BAD_INPUT("max_pool1d", "does not fit", [] { max_pool1d(lines(), {.kernel_size = 6}); });
BAD_INPUT("max_pool1d", "without pixels", [] { max_pool1d(zeros({2, 3, 0}), {.kernel_size = 1}); });
BAD_INPUT("max_pool1d", "does not take int64", [] {
  max_pool1d(zeros({2, 3, 4}, kInt64), {.kernel_size = 1});
});
BAD_INPUT("max_pool3d", "[max_pool3d] input has shape [4, 5, 6]", [] {
  max_pool3d(zeros({4, 5, 6}), {.kernel_size = 2});
});
BAD_INPUT("max_pool3d", "kernel_size [0, 0, 0]", [] { max_pool3d(volumes(), {}); });
BAD_INPUT("max_pool3d", "kernel_size [2, 3]", [] { max_pool3d(volumes(), {.kernel_size = {2, 3}}); });
BAD_INPUT("max_pool3d", "window of [5, 5, 5] with padding [0, 0, 0]",
          [] { max_pool3d(volumes(), {.kernel_size = 5}); });
BAD_INPUT("max_pool3d", "padding [2, 2, 2], expected from 0 to half",
          [] { max_pool3d(volumes(), {.kernel_size = 2, .padding = 2}); });
BAD_INPUT("max_pool3d", "stride [-1, 1, 1]", [] {
  max_pool3d(volumes(), {.kernel_size = 2, .stride = {-1, 1, 1}});
});
BAD_INPUT("max_pool3d", "dilation [9223372036854775807", [] {
  max_pool3d(volumes(), {.kernel_size = 2, .dilation = std::numeric_limits<std::int64_t>::max()});
});
BAD_INPUT("max_pool3d", "without pixels", [] { max_pool3d(zeros({1, 2, 0, 3, 3}), {.kernel_size = 1}); });
BAD_INPUT("avg_pool1d", "[avg_pool1d] dilation",
          [] { avg_pool1d(lines(), {.kernel_size = 2, .dilation = 2}); });
BAD_INPUT("avg_pool1d", "input has shape [2, 3, 4, 5]", [] {
  avg_pool1d(zeros({2, 3, 4, 5}), {.kernel_size = 2});
});
BAD_INPUT("avg_pool3d", "dilation [2, 2, 2]",
          [] { avg_pool3d(volumes(), {.kernel_size = 2, .dilation = 2}); });
BAD_INPUT("avg_pool3d", "does not fit", [] { avg_pool3d(volumes(), {.kernel_size = {1, 1, 7}}); });
BAD_INPUT("lp_pool1d", "norm_type 0", [] { lp_pool1d(lines(), 0, {.kernel_size = 2}); });
BAD_INPUT("lp_pool2d", "leave padding and dilation out", [] {
  lp_pool2d(zeros({1, 4, 4}), 2, {.kernel_size = 2, .padding = 1});
});
BAD_INPUT("lp_pool3d", "does not take int64", [] {
  lp_pool3d(zeros({1, 4, 4, 4}, kInt64), 2, {.kernel_size = 2});
});
BAD_INPUT("adaptive_avg_pool1d", "output size (1, -1)", [] { adaptive_avg_pool1d(lines(), -1); });
BAD_INPUT("adaptive_avg_pool1d", "input has shape [5]", [] { adaptive_avg_pool1d(zeros({5}), 2); });
BAD_INPUT("adaptive_avg_pool3d", "output size [2, -1, 2]", [] {
  adaptive_avg_pool3d(volumes(), {2, -1, 2});
});
BAD_INPUT("adaptive_avg_pool3d", "output_size [2, 2]", [] { adaptive_avg_pool3d(volumes(), {2, 2}); });
BAD_INPUT("adaptive_max_pool1d", "output size [1, -1]", [] { adaptive_max_pool1d(lines(), -1); });
BAD_INPUT("adaptive_max_pool2d", "output size [-2, 1]", [] {
  adaptive_max_pool2d(zeros({1, 4, 4}), {-2, 1});
});
BAD_INPUT("adaptive_max_pool2d", "input has shape [4]", [] { adaptive_max_pool2d(zeros({4}), 2); });
BAD_INPUT("adaptive_max_pool3d", "output size [-1, -1, -1]", [] { adaptive_max_pool3d(volumes(), -1); });
BAD_INPUT("max_unpool1d", "index 9 is outside [0, 4)", [] {
  max_unpool1d(zeros({1, 2}), tensor({{0, 9}}), {.kernel_size = 2});
});
BAD_INPUT("max_unpool1d", "index -1 is outside", [] {
  max_unpool1d(zeros({1, 2}), tensor({{0, -1}}), {.kernel_size = 2});
});
BAD_INPUT("max_unpool1d", "indices are float32", [] {
  max_unpool1d(zeros({1, 2}), zeros({1, 2}), {.kernel_size = 2});
});
BAD_INPUT("max_unpool2d", "indices have shape [1, 1, 2]", [] {
  max_unpool2d(zeros({1, 2, 2}), zeros({1, 1, 2}, kInt64), {.kernel_size = 2});
});
BAD_INPUT("max_unpool2d",
          "output_size [7, 4], but dimension 0 of the images may have more than 2 and less "
          "than 6",
          [] {
            max_unpool2d(zeros({1, 2, 2}), zeros({1, 2, 2}, kInt64), {.kernel_size = 2}, {7, 4});
          });
BAD_INPUT("max_unpool2d", "kernel_size [0, 0]", [] {
  max_unpool2d(zeros({1, 2, 2}), zeros({1, 2, 2}, kInt64), {});
});
BAD_INPUT("max_unpool3d", "would have 0 elements", [] {
  max_unpool3d(zeros({1, 1, 1, 1}), zeros({1, 1, 1, 1}, kInt64), {.kernel_size = 2, .padding = 1});
});

TEST_CASE("max_pool2d_with_indices: a channels-last image has the same indices") {
  const Tensor x = randn({2, 5, 9, 8});
  const Pool2dParams params{.kernel_size = 3, .stride = 2, .padding = 1};
  const auto [y, at] = max_pool2d_with_indices(x, params);
  const auto [z, other] = max_pool2d_with_indices(x.contiguous(MemoryFormat::channels_last), params);
  CHECK(equal(y, z));
  CHECK(equal(at, other));
  CHECK(equal(x.flatten(2).gather(2, at.flatten(2)), y.flatten(2)));
}

TEST_CASE("indices of maximum pools: a window that sees nothing but padding has -1") {
  const auto [y, at] =
      max_pool2d_with_indices(ones({1, 1, 3, 3}), {.kernel_size = 2, .padding = 1, .dilation = 4});
  CHECK(at.item() == -1);
  const auto [z, other] =
      max_pool3d_with_indices(ones({1, 1, 3, 3, 3}), {.kernel_size = 2, .padding = 1, .dilation = 4});
  CHECK(other.item() == -1);
}

TEST_CASE("max_unpool: the pool of the result is the pool") {
  const Tensor x = rand({2, 3, 7, 9}) + 1;
  const auto [y, at] = max_pool2d_with_indices(x, {.kernel_size = 2});
  const Tensor z = max_unpool2d(y, at, {.kernel_size = 2}, x.sizes());
  CHECK(z.sizes() == x.sizes());
  CHECK(equal(max_pool2d(z, {.kernel_size = 2}), y));
  CHECK((z != 0).sum().item() == y.numel());
}

TEST_CASE("adaptive maxima: windows of 300 elements, which no byte can number") {
  const Tensor x = randn({1, 2, 901});
  const auto [y, at] = adaptive_max_pool1d_with_indices(x, 3);
  for (std::int64_t i = 0; i < 3; ++i) {
    const std::int64_t begin = i * 901 / 3, end = ((i + 1) * 901 + 2) / 3;
    const auto [value, index] = x.narrow(2, begin, end - begin).max(2);
    CHECK(equal(y.select(2, i), value));
    CHECK(equal(at.select(2, i), index + begin));
  }
}

TEST_CASE("adaptive pools without windows give the gradient zeros") {
  const auto gradient = [](const Tensor& x, const Tensor& y) {
    CHECK(y.numel() == 0);
    y.sum().backward();
    return x.grad();
  };
  const Tensor image = randn({2, 3, 4, 5}).requires_grad_(), volume = randn({2, 3, 2, 2, 2}).requires_grad_();
  CHECK(equal(gradient(image, adaptive_avg_pool2d(image, 0)), zeros({2, 3, 4, 5})));
  CHECK(equal(gradient(image, adaptive_max_pool2d(image, {2, 0})), zeros({2, 3, 4, 5})));
  CHECK(equal(gradient(volume, adaptive_avg_pool3d(volume, {2, 0, 2})), zeros({2, 3, 2, 2, 2})));
  CHECK(equal(gradient(volume, adaptive_max_pool3d(volume, 0)), zeros({2, 3, 2, 2, 2})));
}

TEST_CASE("max_unpool takes indices of every integer dtype") {
  const Tensor x = tensor({{{1.0, 2.0}}});
  const Tensor y = max_unpool1d(x, tensor({{{1, 2}}}), {.kernel_size = 2});
  CHECK(equal(y, tensor({{{0.0, 1.0, 2.0, 0.0}}})));
  for (const DType dtype : {DType::i32, DType::u8, DType::i16, DType::i8, DType::u16})
    CHECK(equal(max_unpool1d(x, tensor({{{1, 2}}}, dtype), {.kernel_size = 2}), y));
  CHECK_THROWS_AS(max_unpool1d(x, tensor({{{true, false}}}), {.kernel_size = 2}), TypeError);
}
