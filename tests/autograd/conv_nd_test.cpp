// Convolutions of 1 and 3 dimensions, and transposed convolutions. conv_test.cpp has conv2d.
#include <limits>

#include "tapestry/autograd/ops/conv.h"
#include "tapestry/core/threads.h"
#include "tapestry/tapestry.h"
#include "tests/support/op_case.h"

using namespace tapestry;
using tapestry::test::OpCase;

namespace {

template <int kDims>
Extent<kDims> extent(const OpCase& c, const char* name, std::int64_t fallback) {
  const Shape s = c.dims(name, Shape(fallback));
  if constexpr (kDims == 1) return s[0];
  else if constexpr (kDims == 2) return s.size() == 1 ? Pair(s[0]) : Pair(s[0], s[1]);
  else return s.size() == 1 ? Triple(s[0]) : Triple(s[0], s[1], s[2]);
}
template <int kDims>
ConvParams<kDims> params(const OpCase& c) {
  return {extent<kDims>(c, "stride", 1), extent<kDims>(c, "padding", 0), extent<kDims>(c, "dilation", 1),
          c.integer("groups", 1)};
}
template <int kDims>
ConvParams<kDims> named_params(const OpCase& c) {
  return {extent<kDims>(c, "stride", 1), c.text("padding"), extent<kDims>(c, "dilation", 1),
          c.integer("groups", 1)};
}
template <int kDims>
ConvTransposeParams<kDims> transpose_params(const OpCase& c) {
  return {extent<kDims>(c, "stride", 1), extent<kDims>(c, "padding", 0),
          extent<kDims>(c, "output_padding", 0), c.integer("groups", 1), extent<kDims>(c, "dilation", 1)};
}
constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

// Leaves memory full of NaN behind, which the next allocations of these sizes reuse.
void dirty_memory() {
  std::vector<Tensor> blocks;
  for (std::int64_t n = 64; n <= 1 << 16; n *= 2)
    for (int i = 0; i < 4; ++i)
      blocks.push_back(full({n}, std::numeric_limits<double>::quiet_NaN(), DType::f64));
}

// sum(y (conv(x))) and its gradients, for a layer that a function computes.
struct Results {
  Tensor y;
  std::vector<Tensor> gradients;
};
template <class F>
Results results(const F& f, std::vector<Tensor> inputs, const Tensor& dy = {}) {
  for (Tensor& t : inputs)
    if (t.defined()) t = t.detach().set_requires_grad();
  Results r{f(inputs), {}};
  (r.y * (dy.defined() ? dy : ones(r.y.sizes(), r.y.dtype()))).sum().backward();
  for (const Tensor& t : inputs) r.gradients.push_back(t.defined() ? t.grad() : Tensor());
  return r;
}
void check_same(const Results& got, const Results& want, double tolerance) {
  CHECK(allclose(got.y, want.y, tolerance, tolerance));
  REQUIRE(got.gradients.size() == want.gradients.size());
  for (std::size_t i = 0; i < got.gradients.size(); ++i) {
    INFO("gradient " << i);
    REQUIRE(got.gradients[i].defined() == want.gradients[i].defined());
    if (got.gradients[i].defined())
      CHECK(
          allclose(got.gradients[i], want.gradients[i].view(got.gradients[i].sizes()), tolerance, tolerance));
  }
}

}  // namespace

GOLDEN_OP("conv1d", "conv_nd", [](const OpCase& c) { return conv1d(c[0], c[1], c[2], params<1>(c)); });
GOLDEN_OP("conv2d/unbatched", "conv_nd",
          [](const OpCase& c) { return conv2d(c[0], c[1], c[2], params<2>(c)); });
GOLDEN_OP("conv3d", "conv_nd", [](const OpCase& c) { return conv3d(c[0], c[1], c[2], params<3>(c)); });
GOLDEN_OP("conv1d/named", "conv_nd",
          [](const OpCase& c) { return conv1d(c[0], c[1], c[2], named_params<1>(c)); });
GOLDEN_OP("conv2d/named", "conv_nd",
          [](const OpCase& c) { return conv2d(c[0], c[1], c[2], named_params<2>(c)); });
GOLDEN_OP("conv3d/named", "conv_nd",
          [](const OpCase& c) { return conv3d(c[0], c[1], c[2], named_params<3>(c)); });
GOLDEN_OP("conv_transpose1d", "conv_nd",
          [](const OpCase& c) { return conv_transpose1d(c[0], c[1], c[2], transpose_params<1>(c)); });
GOLDEN_OP("conv_transpose2d", "conv_nd",
          [](const OpCase& c) { return conv_transpose2d(c[0], c[1], c[2], transpose_params<2>(c)); });
GOLDEN_OP("conv_transpose3d", "conv_nd",
          [](const OpCase& c) { return conv_transpose3d(c[0], c[1], c[2], transpose_params<3>(c)); });

BAD_INPUT("conv1d", "input has shape [3], expected 3-d (N, C, L) or 2-d (C, L)", [] {
  conv1d(zeros({3}), zeros({4, 3, 3}));
});
BAD_INPUT("conv1d", "weight has shape [4, 3, 3, 1], expected 3-d", [] {
  conv1d(zeros({2, 3, 8}), zeros({4, 3, 3, 1}));
});
BAD_INPUT("conv1d", "a kernel that spans 5 pixels does not fit an input length of 4", [] {
  conv1d(zeros({2, 3, 4}), zeros({4, 3, 3}), {}, {.dilation = 2});
});
BAD_INPUT("conv1d", "stride 0, expected from 1", [] {
  conv1d(zeros({2, 3, 8}), zeros({4, 3, 3}), {}, {.stride = 0});
});
BAD_INPUT("conv1d", "does not take int64", [] {
  conv1d(zeros({2, 3, 8}, DType::i64), zeros({4, 3, 3}, DType::i64));
});
BAD_INPUT("conv1d", "padding is \"full\"; give \"same\", \"valid\" or numbers", [] {
  conv1d(zeros({2, 3, 8}), zeros({4, 3, 3}), {}, {.padding = "full"});
});
BAD_INPUT("conv2d", "padding \"same\" with stride (1, 2); it needs stride 1", [] {
  conv2d(zeros({2, 3, 8, 8}), zeros({4, 3, 3, 3}), {}, {.stride = {1, 2}, .padding = "same"});
});
BAD_INPUT("conv2d", "dilation (0, 1)", [] {
  conv2d(zeros({2, 3, 8, 8}), zeros({4, 3, 3, 3}), {}, {.padding = "same", .dilation = {0, 1}});
});
BAD_INPUT("conv2d", "weight has shape [4, 3, 3], expected 4-d", [] {
  conv2d(zeros({2, 3, 8, 8}), zeros({4, 3, 3}), {}, {.padding = "same"});
});
BAD_INPUT("conv3d", "one that spans more than 2147483647", [] {
  conv3d(zeros({1, 3, 4, 4, 4}), zeros({4, 3, 3, 3, 3}), {},
         {.padding = "same", .dilation = {1, 1, std::numeric_limits<std::int32_t>::max()}});
});
BAD_INPUT("conv3d", "input has shape [3, 8, 9], expected 5-d (N, C, D, H, W) or 4-d (C, D, H, W)", [] {
  conv3d(zeros({3, 8, 9}), zeros({4, 3, 3, 3, 3}));
});
BAD_INPUT("conv3d", "has 3 channels, but weight [4, 2, 3, 3, 3] with 1 groups takes 2", [] {
  conv3d(zeros({1, 3, 4, 4, 4}), zeros({4, 2, 3, 3, 3}));
});
BAD_INPUT("conv3d", "does not fit an input depth of 2", [] {
  conv3d(zeros({1, 3, 2, 4, 4}), zeros({4, 3, 3, 3, 3}));
});
BAD_INPUT("conv3d", "padding (0, -1, 0), expected from 0", [] {
  conv3d(zeros({1, 3, 4, 4, 4}), zeros({4, 3, 3, 3, 3}), {}, {.padding = {0, -1, 0}});
});
BAD_INPUT("conv3d", "dilation (1, 1, 9223372036854775807)", [] {
  conv3d(zeros({1, 3, 4, 4, 4}), zeros({4, 3, 3, 3, 3}), {}, {.dilation = {1, 1, kMost}});
});
BAD_INPUT("conv_transpose1d", "weight has shape [3, 4], expected 3-d (C, K / groups, S)", [] {
  conv_transpose1d(zeros({2, 3, 8}), zeros({3, 4}));
});
BAD_INPUT("conv_transpose1d", "output_padding 2 along the length must be less than stride 2 or dilation 1",
          [] {
            conv_transpose1d(zeros({2, 3, 8}), zeros({3, 4, 3}), {}, {.stride = 2, .output_padding = 2});
          });
BAD_INPUT("conv_transpose1d", "an input length of 0", [] {
  conv_transpose1d(zeros({2, 3, 0}), zeros({3, 4, 3}));
});
BAD_INPUT("conv_transpose2d", "input has shape [8, 9], expected 4-d", [] {
  conv_transpose2d(zeros({8, 9}), zeros({3, 4, 3, 3}));
});
BAD_INPUT("conv_transpose2d", "has 3 channels, but weight [4, 3, 3, 3] with 1 groups takes 4", [] {
  conv_transpose2d(zeros({2, 3, 4, 4}), zeros({4, 3, 3, 3}));
});
BAD_INPUT("conv_transpose2d", "2 groups do not divide 3 input channels", [] {
  conv_transpose2d(zeros({2, 3, 4, 4}), zeros({3, 4, 3, 3}), {}, {.groups = 2});
});
BAD_INPUT("conv_transpose2d", "bias has shape [3], expected [8]", [] {
  conv_transpose2d(zeros({2, 4, 4, 4}), zeros({4, 4, 3, 3}), zeros({3}), {.groups = 2});
});
BAD_INPUT("conv_transpose2d", "output_padding (0, -1)", [] {
  conv_transpose2d(zeros({2, 3, 4, 4}), zeros({3, 4, 3, 3}), {}, {.output_padding = {0, -1}});
});
BAD_INPUT("conv_transpose2d", "gives windows that span 4 pixels, and padding 2 removes them all", [] {
  conv_transpose2d(zeros({2, 3, 4, 2}), zeros({3, 4, 3, 3}), {}, {.padding = {0, 2}});
});
BAD_INPUT("conv_transpose2d", "more channels than 64 bits can count", [] {
  conv_transpose2d(zeros({1, 0, 2, 2}), zeros({0, 4, 1, 1}), {}, {.groups = kMost});
});
BAD_INPUT("conv_transpose2d", "64 bits can count", [] {
  conv_transpose2d(zeros({1, 1, 1 << 10, 1 << 10}), zeros({1, 1, 1, 1}), {}, {.stride = (1LL << 31) - 1});
});
BAD_INPUT("conv_transpose2d", "weight has dtype float64", [] {
  conv_transpose2d(zeros({2, 3, 4, 4}), zeros({3, 4, 3, 3}, DType::f64));
});
BAD_INPUT("conv_transpose3d", "input has shape [4, 4, 4], expected 5-d", [] {
  conv_transpose3d(zeros({4, 4, 4}), zeros({3, 4, 3, 3, 3}));
});
BAD_INPUT("conv_transpose3d", "output_padding 1 along the depth", [] {
  conv_transpose3d(zeros({1, 3, 4, 4, 4}), zeros({3, 4, 3, 3, 3}), {}, {.output_padding = {1, 0, 0}});
});

TEST_CASE("conv1d is conv2d of images with one row") {
  const Tensor x = randn({3, 4, 30}), w = randn({6, 2, 5}), b = randn({6});
  const Conv1dParams p{.stride = 2, .padding = 3, .dilation = 2, .groups = 2};
  const Results line = results([&](const auto& in) { return conv1d(in[0], in[1], in[2], p); }, {x, w, b});
  const Results image = results(
      [&](const auto& in) {
        return conv2d(in[0].unsqueeze(2), in[1].unsqueeze(2), in[2],
                      {.stride = {1, 2}, .padding = {0, 3}, .dilation = {1, 2}, .groups = 2})
            .squeeze(2);
      },
      {x, w, b});
  CHECK(equal(line.y, image.y));
  for (std::size_t i = 0; i < 3; ++i) CHECK(equal(line.gradients[i], image.gradients[i]));
  CHECK(equal(conv1d(x[1], w, b, p), conv1d(x.narrow(0, 1, 1), w, b, p)[0]));
}

TEST_CASE("conv1d of a line without elements gives the bias where there is padding") {
  const Tensor b = tensor({1.0, 2.0, 3.0}).set_requires_grad();
  const Tensor x = zeros({2, 2, 0}).set_requires_grad(), w = ones({3, 2, 2}).set_requires_grad();
  const Tensor y = conv1d(x, w, b, {.padding = 1});
  CHECK(equal(y, tensor({1.0, 2.0, 3.0}).view({1, 3, 1}).expand({2, 3, 1})));
  y.sum().backward();
  CHECK(equal(b.grad(), full({3}, 2.0)));
  CHECK(equal(w.grad(), zeros({3, 2, 2})));
  CHECK(x.grad().sizes() == x.sizes());
}

TEST_CASE("conv3d is the sum over the depth of its window of conv2d, in both directions of the tape") {
  const int before = get_num_threads();
  for (const DType dtype : {DType::f32, DType::f64}) {  // different kernels if there is oneDNN
    set_num_threads(dtype == DType::f32 ? 1 : 3);
    const Tensor x = randn({2, 6, 9, 8, 7}, dtype), b = randn({4}, dtype);
    for (const Conv3dParams& p :
         {Conv3dParams{}, Conv3dParams{.padding = 1}, Conv3dParams{.stride = 2, .padding = {4, 0, 1}},
          Conv3dParams{.stride = {3, 1, 2}, .padding = {3, 1, 0}, .dilation = {2, 1, 2}, .groups = 2}}) {
      const Tensor w = randn({4, 6 / p.groups, 4, 3, 2}, dtype);
      const auto planes = [&](const std::vector<Tensor>& in) {
        const std::int64_t depth = (9 + 2 * p.padding.sides.d - p.dilation.d * 3 - 1) / p.stride.d + 1;
        std::vector<Tensor> out;
        for (std::int64_t o = 0; o < depth; ++o) {
          Tensor plane;
          for (std::int64_t t = 0; t < 4; ++t) {
            const std::int64_t at = o * p.stride.d - p.padding.sides.d + t * p.dilation.d;
            const bool inside = at >= 0 && at < 9;
            const Tensor slice = inside ? in[0].select(2, at) : in[0].select(2, 0) * 0;
            const Tensor part = conv2d(slice, in[1].select(2, t), {},
                                       {.stride = {p.stride.h, p.stride.w},
                                        .padding = {p.padding.sides.h, p.padding.sides.w},
                                        .dilation = {p.dilation.h, p.dilation.w},
                                        .groups = p.groups});
            plane = plane.defined() ? plane + part : part;
          }
          out.push_back(plane + in[2].view({4, 1, 1}));
        }
        return stack(out, 2);
      };
      const Tensor dy = randn(conv3d(x, w, b, p).sizes(), dtype);
      dirty_memory();
      check_same(results([&](const auto& in) { return conv3d(in[0], in[1], in[2], p); }, {x, w, b}, dy),
                 results(planes, {x, w, b}, dy), dtype == DType::f32 ? 1e-4 : 1e-12);
    }
  }
  set_num_threads(before);
}

TEST_CASE("conv_transpose2d is the transpose of conv2d, in f32 and f64 and both layouts") {
  // <conv2d(x, w), y> = <x, conv_transpose2d(y, w)>, which determines the transposed map.
  for (const DType dtype : {DType::f32, DType::f64})
    for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last})
      for (const std::int64_t groups : {1, 4, 8}) {
        CAPTURE(dtype_name(dtype), groups);
        const Tensor x = randn({5, 8, 18, 13}, dtype), w = randn({16, 8 / groups, 4, 3}, dtype);
        const Conv2dParams p{.stride = {2, 3}, .padding = {1, 2}, .groups = groups};
        const Tensor y = conv2d(x, w, {}, p), z = randn(y.sizes(), dtype).contiguous(format);
        dirty_memory();
        const Tensor back = conv_transpose2d(
            z, w, {},
            {.stride = p.stride, .padding = p.padding.sides, .output_padding = {0, 2}, .groups = groups});
        CHECK(back.memory_format() == format);
        REQUIRE(back.sizes() == x.sizes());
        const double left = (y * z).sum().item(), right = (x * back).sum().item();
        CHECK(left == Approx(right).epsilon(dtype == DType::f32 ? 1e-3 : 1e-11).margin(1e-2));
        // One pixel is one window.
        Tensor one = zeros(y.sizes(), dtype);
        one.index_put_({3, 5, 2, 3}, 1.0);
        const Tensor window = conv_transpose2d(
            one.contiguous(format), w, {},
            {.stride = p.stride, .padding = p.padding.sides, .output_padding = {0, 2}, .groups = groups});
        const std::int64_t each = 8 / groups, first = 5 / (16 / groups) * each;
        CHECK(allclose(window[3].narrow(0, first, each).narrow(1, 3, 4).narrow(2, 7, 3), w[5], 1e-6, 1e-6));
        CHECK(window.abs().sum().item() == Approx(w[5].abs().sum().item()));
      }
}

TEST_CASE("conv_transpose2d: a channels-last input or weight gives a channels-last result and gradient") {
  const Tensor x = randn({2, 5, 6, 7}), w = randn({5, 4, 3, 3}), b = randn({4});
  const ConvTranspose2dParams p{.stride = 2, .padding = 1};
  const auto f = [&](const std::vector<Tensor>& in) { return conv_transpose2d(in[0], in[1], in[2], p); };
  const Results plain = results(f, {x, w, b});
  const Results last = results(f, {x.contiguous(MemoryFormat::channels_last), w, b});
  CHECK(plain.y.memory_format() == MemoryFormat::contiguous);
  CHECK(last.y.memory_format() == MemoryFormat::channels_last);
  CHECK(last.gradients[0].memory_format() == MemoryFormat::channels_last);
  CHECK(conv_transpose2d(x, w.contiguous(MemoryFormat::channels_last)).memory_format() ==
        MemoryFormat::channels_last);
  check_same(last, plain, 1e-4);
}

TEST_CASE("transposed convolutions: a gradient has the same values alone or together with the others") {
  const Tensor x = randn({3, 4, 6, 5}), w = randn({4, 6, 3, 2}), b = randn({6});
  const auto gradients = [&](bool dx, bool dw, bool db) {
    const Tensor inputs[] = {x.clone().set_requires_grad(dx), w.clone().set_requires_grad(dw),
                             b.clone().set_requires_grad(db)};
    conv_transpose2d(inputs[0], inputs[1], inputs[2], {.stride = 2, .padding = 1}).pow(2.0).sum().backward();
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

TEST_CASE("conv_transpose3d is the transpose of conv3d") {
  for (const DType dtype : {DType::f32, DType::f64}) {
    const Tensor x = randn({2, 4, 7, 8, 6}, dtype), w = randn({6, 2, 3, 2, 3}, dtype);
    const Conv3dParams p{.stride = {2, 3, 1}, .padding = {1, 0, 1}, .groups = 2};
    const Tensor y = conv3d(x, w, {}, p), z = randn(y.sizes(), dtype);
    dirty_memory();
    const Tensor back = conv_transpose3d(
        z, w, {}, {.stride = p.stride, .padding = p.padding.sides, .output_padding = {0, 0, 0}, .groups = 2});
    REQUIRE(back.sizes() == x.sizes());
    const double left = (y * z).sum().item(), right = (x * back).sum().item();
    CHECK(left == Approx(right).epsilon(dtype == DType::f32 ? 1e-3 : 1e-11).margin(1e-2));
  }
}
