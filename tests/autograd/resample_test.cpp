#include "tapestry/autograd/ops/resample.h"

#include <limits>
#include <string>

#include "tapestry/autograd/ops.h"
#include "tapestry/core/threads.h"
#include "tests/support/op_case.h"

using namespace tapestry;
using namespace tapestry::test;

namespace {

InterpolateMode mode_of(const std::string& name) {
  constexpr const char* kNames[] = {"nearest",   "nearest-exact", "linear", "bilinear",
                                    "trilinear", "bicubic",       "area"};
  for (int i = 0; i < 7; ++i)
    if (name == kNames[i]) return static_cast<InterpolateMode>(i);
  FAIL(name);
  return InterpolateMode::nearest;
}
InterpolateParams params(const OpCase& c) {
  InterpolateParams p{.mode = mode_of(c.text("mode")),
                      .recompute_scale_factor = c.flag("recompute_scale_factor", false),
                      .antialias = c.flag("antialias", false)};
  if (c.has("size")) p.size = c.dims("size");
  if (c.has("align_corners")) p.align_corners = c.flag("align_corners");
  if (!c.has("scale_factor")) return p;
  // The recorded factor is a number or a list.
  try {
    p.scale_factor = c.real("scale_factor");
  } catch (const std::exception&) {
    p.scale_factor = c.reals("scale_factor");
  }
  return p;
}
Tensor images() { return zeros({1, 2, 4, 5}); }

}  // namespace

GOLDEN_OP("interpolate", "resample", [](const OpCase& c) { return interpolate(c[0], params(c)); });

BAD_INPUT("interpolate", "bytes", [] {  // fails before it computes a table of two billion entries
  interpolate(zeros({1, 1, 2, 2}), {.scale_factor = 5e8});
});
BAD_INPUT("interpolate", "input of shape [4, 5]", [] { interpolate(zeros({4, 5}), {.size = 2}); });
BAD_INPUT("interpolate", "not neither", [] { interpolate(images(), {}); });
BAD_INPUT("interpolate", "not both", [] { interpolate(images(), {.size = 2, .scale_factor = 2}); });
BAD_INPUT("interpolate", "mode linear takes inputs of 3 dimensions",
          [] { interpolate(images(), {.size = 2, .mode = InterpolateMode::linear}); });
BAD_INPUT("interpolate", "mode bicubic takes inputs of 4", [] {
  interpolate(zeros({1, 1, 2, 2, 2}), {.size = 2, .mode = InterpolateMode::bicubic});
});
BAD_INPUT("interpolate", "mode nearest has no align_corners",
          [] { interpolate(images(), {.size = 2, .align_corners = false}); });
BAD_INPUT("interpolate", "mode area has no antialias",
          [] { interpolate(images(), {.size = 2, .mode = InterpolateMode::area, .antialias = true}); });
BAD_INPUT("interpolate", "3 scale factors for 2", [] { interpolate(images(), {.scale_factor = {1, 2, 3}}); });
BAD_INPUT("interpolate", "size [1, 2, 3] for 2", [] { interpolate(images(), {.size = {1, 2, 3}}); });
BAD_INPUT("interpolate", "size 0 from a size of 4", [] { interpolate(images(), {.size = {0, 2}}); });
BAD_INPUT("interpolate", "size -3 from a size of 5", [] { interpolate(images(), {.size = {1, -3}}); });
BAD_INPUT("interpolate", "size 0 from a size of 4", [] { interpolate(images(), {.scale_factor = 0.2}); });
BAD_INPUT("interpolate", "scale factor -1", [] { interpolate(images(), {.scale_factor = -1}); });
BAD_INPUT("interpolate", "scale factor 1e+18", [] { interpolate(images(), {.scale_factor = 1e18}); });
BAD_INPUT("interpolate", "scale factor nan",
          [] { interpolate(images(), {.scale_factor = std::numeric_limits<double>::quiet_NaN()}); });
BAD_INPUT("interpolate", "recompute_scale_factor without",
          [] { interpolate(images(), {.size = 3, .recompute_scale_factor = true}); });
BAD_INPUT("interpolate", "without pixels", [] { interpolate(zeros({1, 2, 0, 3}), {.size = 2}); });

TEST_CASE("interpolate: a channels-last image gives a channels-last result, and the same numbers") {
  const Tensor x = randn({2, 19, 7, 9}, TensorOptions(kFloat64));
  for (const InterpolateMode mode :
       {InterpolateMode::nearest, InterpolateMode::bilinear, InterpolateMode::bicubic, InterpolateMode::area})
    for (const Shape& size : {Shape{3, 14}, Shape{15, 4}, Shape{7, 9}}) {
      const Tensor plain = x.clone().set_requires_grad();
      const Tensor last = x.contiguous(MemoryFormat::channels_last).set_requires_grad();
      const Tensor y = interpolate(plain, {.size = size, .mode = mode}),
                   z = interpolate(last, {.size = size, .mode = mode}), g = randn(y.sizes(), y.dtype());
      CHECK(z.memory_format() == MemoryFormat::channels_last);
      CHECK(allclose(y, z, 1e-12, 1e-12));
      y.backward(g);
      z.backward(g);
      CHECK(last.grad().memory_format() == MemoryFormat::channels_last);
      CHECK(allclose(plain.grad(), last.grad(), 1e-12, 1e-12));
    }
}

TEST_CASE("interpolate: results and gradients have the same bits for every number of threads") {
  const Tensor x = randn({2, 3, 130, 150});
  const auto run = [&](int threads) {
    set_num_threads(threads);
    const Tensor leaf = x.clone().set_requires_grad();
    const Tensor y = interpolate(leaf, {.scale_factor = 1.7, .mode = InterpolateMode::bicubic});
    y.backward(y.detach());
    return std::pair(y.detach(), leaf.grad());
  };
  const int before = get_num_threads();
  const auto one = run(1), three = run(3);
  set_num_threads(before);
  CHECK(equal(one.first, three.first));
  CHECK(equal(one.second, three.second));
}

TEST_CASE("interpolate: a constant image stays constant in every mode and at every size") {
  // The weights of each output add up to 1, so a shifted or missing tap shows.
  const Tensor x = full({1, 3, 11, 13}, 0.3, kFloat64);
  for (const bool antialias : {false, true})
    for (const InterpolateMode mode : {InterpolateMode::bilinear, InterpolateMode::bicubic})
      for (const std::int64_t size : {1, 4, 11, 23})
        CHECK(allclose(interpolate(x, {.size = {size, 30 - size}, .mode = mode, .antialias = antialias}),
                       full({1, 3, size, 30 - size}, 0.3, kFloat64), 1e-14, 1e-14));
}

TEST_CASE("interpolate: halves are rounded once") {
  // Between the passes along the axes the values are f32: rounding there too would differ in many elements.
  const Tensor x = randn({1, 2, 9, 10}).to(kBFloat16);
  const InterpolateParams params{.size = {20, 23}, .mode = InterpolateMode::bicubic};
  CHECK(equal(interpolate(x, params), interpolate(x.to(kFloat32), params).to(kBFloat16)));
}
