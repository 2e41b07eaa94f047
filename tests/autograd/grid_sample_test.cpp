#include "tapestry/autograd/ops/grid_sample.h"

#include <limits>
#include <string>

#include "tapestry/autograd/ops.h"
#include "tapestry/core/threads.h"
#include "tests/support/op_case.h"

using namespace tapestry;
using namespace tapestry::test;

namespace {

GridSampleParams params(const OpCase& c) {
  const std::string mode = c.text("mode"), padding = c.text("padding");
  return {.mode = mode == "bilinear"  ? GridSampleMode::bilinear
                  : mode == "nearest" ? GridSampleMode::nearest
                                      : GridSampleMode::bicubic,
          .padding_mode = padding == "zeros"    ? GridSamplePadding::zeros
                          : padding == "border" ? GridSamplePadding::border
                                                : GridSamplePadding::reflection,
          .align_corners = c.flag("align")};
}
Tensor images() { return zeros({2, 3, 4, 5}); }

}  // namespace

NOT_APPLICABLE("grid_sample", gradgradcheck, "the backward is a kernel of its own, as in PyTorch");
GOLDEN_OP("grid_sample", "grid_sample", [](const OpCase& c) { return grid_sample(c[0], c[1], params(c)); });
GOLDEN_OP("affine_grid", "grid_sample",
          [](const OpCase& c) { return affine_grid(c[0], c.dims("size"), c.flag("align")); });
NOT_APPLICABLE("grid_sample", gradgradcheck, "its backward consists of kernels that have no gradient");
NOT_APPLICABLE("affine_grid", empty, "all sizes are at least 1, as in PyTorch");

BAD_INPUT("grid_sample", "input of shape [4, 5]", [] { grid_sample(zeros({4, 5}), zeros({1, 2, 2, 2})); });
BAD_INPUT("grid_sample", "grid of shape [1, 2, 2, 2] for an input of shape [2, 3, 4, 5]; expected (2, P", [] {
  grid_sample(images(), zeros({1, 2, 2, 2}));
});
BAD_INPUT("grid_sample", "grid of shape [2, 2, 2, 3]", [] { grid_sample(images(), zeros({2, 2, 2, 3})); });
BAD_INPUT("grid_sample", "grid of shape [2, 2, 2]", [] { grid_sample(images(), zeros({2, 2, 2})); });
BAD_INPUT("grid_sample", "the grid float64", [] { grid_sample(images(), zeros({2, 2, 2, 2}, kFloat64)); });
BAD_INPUT("grid_sample", "mode bicubic takes images", [] {
  grid_sample(zeros({1, 1, 2, 2, 2}), zeros({1, 2, 2, 2, 3}), {.mode = GridSampleMode::bicubic});
});
BAD_INPUT("grid_sample", "without pixels", [] { grid_sample(zeros({1, 1, 0, 3}), zeros({1, 2, 2, 2})); });
BAD_INPUT("affine_grid", "size [2, 3]", [] { affine_grid(zeros({2, 2, 3}), {2, 3}); });
BAD_INPUT("affine_grid", "theta has shape [1, 2, 3], expected [2, 2, 3]", [] {
  affine_grid(zeros({1, 2, 3}), {2, 1, 3, 3});
});
BAD_INPUT("affine_grid", "size [1, 1, 0, 3]", [] { affine_grid(zeros({1, 2, 3}), {1, 1, 0, 3}); });

TEST_CASE("grid_sample: the grid of the identity gives the image back") {
  const Tensor x = randn({2, 3, 5, 7}, kFloat64);
  const Tensor theta = tensor({{{1, 0, 0}, {0, 1, 0}}, {{1, 0, 0}, {0, 1, 0}}}, kFloat64);
  for (const bool align : {false, true})
    CHECK(allclose(grid_sample(x, affine_grid(theta, x.sizes(), align), {.align_corners = align}), x, 1e-12,
                   1e-12));
}

TEST_CASE("grid_sample: a channels-last image gives a channels-last result, and the same numbers") {
  // 70 channels are more than one thread takes, and 150 points are three blocks.
  const Tensor x = randn({2, 70, 6, 5}, kFloat64), at = rand({2, 15, 10, 2}, kFloat64) * 3 - 1.5;
  for (const GridSampleMode mode : {GridSampleMode::bilinear, GridSampleMode::bicubic}) {
    const Tensor plain = x.clone().set_requires_grad(), points = at.clone().set_requires_grad();
    const Tensor last = x.contiguous(MemoryFormat::channels_last).set_requires_grad();
    const Tensor other = at.clone().set_requires_grad();
    const Tensor y = grid_sample(plain, points, {.mode = mode}), z = grid_sample(last, other, {.mode = mode});
    const Tensor g = randn(y.sizes(), kFloat64);
    CHECK(z.memory_format() == MemoryFormat::channels_last);
    CHECK(allclose(y, z, 1e-12, 1e-12));
    y.backward(g);
    z.backward(g);
    CHECK(last.grad().memory_format() == MemoryFormat::channels_last);
    CHECK(allclose(plain.grad(), last.grad(), 1e-12, 1e-12));
    CHECK(allclose(points.grad(), other.grad(), 1e-12, 1e-12));
  }
}

TEST_CASE("grid_sample: results and gradients have the same bits for every number of threads") {
  const Tensor x = randn({2, 20, 30, 30}), at = rand({2, 60, 70, 2}) * 2 - 1;
  const auto run = [&](int threads) {
    set_num_threads(threads);
    const Tensor leaf = x.clone().set_requires_grad(), points = at.clone().set_requires_grad();
    const Tensor y = grid_sample(leaf, points);
    y.backward(y.detach());
    return std::vector<Tensor>{y.detach(), leaf.grad(), points.grad()};
  };
  const int before = get_num_threads();
  const auto one = run(1), three = run(3);
  set_num_threads(before);
  for (std::size_t i = 0; i < one.size(); ++i) CHECK(equal(one[i], three[i]));
}

TEST_CASE("grid_sample: coordinates that are not finite give NaN, or are at the first pixel") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Tensor x = tensor({1.0, 2.0, 3.0, 4.0}).view({1, 1, 2, 2});
  const Tensor at = tensor({nan, nan, 0.5, nan}).view({1, 1, 2, 2});
  CHECK(isnan(grid_sample(x, at)).all().item<bool>());
  CHECK(equal(grid_sample(x, at, {.mode = GridSampleMode::nearest}).flatten(), tensor({0.0, 0.0})));
  CHECK(
      equal(grid_sample(x, at, {.padding_mode = GridSamplePadding::border, .align_corners = true}).flatten(),
            tensor({1.0, 1.75})));
  for (const GridSampleMode mode :
       {GridSampleMode::bilinear, GridSampleMode::nearest, GridSampleMode::bicubic})
    for (const GridSamplePadding padding :
         {GridSamplePadding::zeros, GridSamplePadding::border, GridSamplePadding::reflection})
      for (const double far : {1e20, -1e20, std::numeric_limits<double>::infinity()}) {
        const Tensor leaf = x.clone().set_requires_grad(),
                     point = full({1, 1, 1, 2}, far).set_requires_grad();
        CHECK_NOTHROW(grid_sample(leaf, point, {.mode = mode, .padding_mode = padding}).sum().backward());
      }
}

TEST_CASE("grid_sample: in f32, points at and beyond the border give the values and gradients of f64") {
  // 64 points are a block. Pixel 0 is infinite, and points that do not read it must not see it.
  for (const GridSamplePadding padding :
       {GridSamplePadding::zeros, GridSamplePadding::border, GridSamplePadding::reflection}) {
    const Tensor image = randn({2, 3, 5, 6}), at = rand({2, 1, 131, 2}) * 3 - 1.5, g = randn({2, 3, 1, 131});
    const auto run = [&](DType t) {
      const Tensor x = image.to(t).clone().set_requires_grad(), points = at.to(t).clone().set_requires_grad();
      const Tensor y = grid_sample(x, points, {.padding_mode = padding});
      y.backward(g.to(t));
      return std::vector<Tensor>{y.detach(), x.grad(), points.grad()};
    };
    const auto narrow = run(kFloat32), wide = run(kFloat64);
    for (std::size_t i = 0; i < wide.size(); ++i)
      CHECK(allclose(narrow[i].to(kFloat64), wide[i], 1e-4, 1e-4));
  }
  const Tensor x = full({1, 1, 4, 4}, 1.0);
  x.flatten()[0].fill_(std::numeric_limits<double>::infinity());
  const Tensor outside = tensor({0.9f, 0.9f, 1.1f, 1.1f, 5.0f, 5.0f}).view({1, 1, 3, 2}).requires_grad_();
  const Tensor y = grid_sample(x, outside);
  CHECK(all(isfinite(y.detach())).item<bool>());
  y.sum().backward();
  CHECK(all(isfinite(outside.grad())).item<bool>());
}
