// Sampling kernels must give the CPU's values in f64 in every mode, and the gradient of the image the same
// bits in every thread order.
#include "tapestry/kernels/cuda/grid_sample.cuh"

#include <algorithm>
#include <cstring>

#include "tests/emulated/values.h"

using namespace tapestry;
using namespace tapestry::kernels;
namespace gpu = tapestry::kernels::cuda;
using namespace emulated;

namespace {

GridShape image(std::int64_t n, std::int64_t c, std::int64_t h, std::int64_t w, std::int64_t points,
                bool channels_last) {
  GridShape s{.n = n, .c = c, .points = points};
  const std::int64_t pixel = channels_last ? c : 1;
  s.axes[0] = {1, h * w * pixel};
  s.axes[1] = {h, w * pixel};
  s.axes[2] = {w, pixel};
  s.channels_last = channels_last;
  return s;
}
GridShape volume(std::int64_t n, std::int64_t c, std::int64_t points) {
  GridShape s = image(n, c, 4, 3, points, false);
  s.dims = 3;
  s.axes[0] = {2, 12};
  return s;
}
std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

struct SampleInputs {
  Values x, grid, dy;
};
SampleInputs sample_inputs(const GridShape& s) {
  // The grid has multiples of 1/64 from -2 to 2, between which no derivative jumps.
  Values grid = numbers(s.n * s.points * s.dims, 2, 2);
  for (double& g : grid) g += 0x1p-8;
  return {numbers(s.n * s.c * s.pixels(), 1, 2), rounded<BFloat16>(grid),
          numbers(s.n * s.c * s.points, 3, 2)};
}

void check_sampling(const GridShape& s, const SampleInputs& inputs) {
  CAPTURE(s.n, s.c, s.points, s.dims, s.channels_last, static_cast<int>(s.mode), static_cast<int>(s.padding),
          s.align_corners);
  const auto& [x, grid, dy] = inputs;
  Values y(dy.size()), dx(x.size()), dgrid(grid.size());
  kernels::grid_sample(kCPU, DType::f64, {.shape = s, .x = x.data(), .grid = grid.data(), .y = y.data()});
  kernels::grid_sample_backward_input(kCPU, DType::f64,
                                      {.shape = s, .grid = grid.data(), .dy = dy.data(), .dx = dx.data()});
  kernels::grid_sample_backward_grid(
      kCPU, DType::f64,
      {.shape = s, .x = x.data(), .grid = grid.data(), .dy = dy.data(), .dgrid = dgrid.data()});
  // The rounding of a coordinate of up to 16 pixels moves a value by 64 unit roundoffs at most.
  const double terms = static_cast<double>(s.c) * 16;
  for_float_dtypes([&]<class T>() {
    const Block<T> in(x), points(grid), g(dy);
    Block<T> first(x.size());
    bool has_first = false;
    in_each_order([&] {
      const Block<T> out(Values(y.size(), 77)), din(Values(dx.size(), 77)), dpoints(Values(dgrid.size(), 77));
      gpu::launch_grid_sample<T>({}, {.shape = s, .x = in.data(), .grid = points.data(), .y = out.data()});
      check_close("y", out, y, Values(y.size(), 2048));
      gpu::launch_grid_sample_backward_input<T>(
          {}, {.shape = s, .grid = points.data(), .dy = g.data(), .dx = din.data()});
      check_close("dx", din, dx, Values(dx.size(), 2048 * static_cast<double>(s.points)));
      gpu::launch_grid_sample_backward_grid<T>(
          {}, {.shape = s, .x = in.data(), .grid = points.data(), .dy = g.data(), .dgrid = dpoints.data()});
      check_close("dgrid", dpoints, dgrid, Values(dgrid.size(), 2048 * terms));
      if (has_first) CHECK(std::memcmp(first.data(), din.data(), dx.size() * sizeof(T)) == 0);
      else std::copy_n(din.data(), dx.size(), first.data());
      has_first = true;
    });
  });
}
void check_sampling(const GridShape& s) { check_sampling(s, sample_inputs(s)); }

// Puts NaN and infinities into one input after the other, and then into all of them. They are at the first, a
// middle and the last element, in different images and at different points.
void check_not_finite(const GridShape& s) {
  const auto spoil = [](Values& v) {
    v.front() = kNaN;
    v[v.size() / 3] = kInfinity;
    v[v.size() / 2] = kNaN;
    v[2 * v.size() / 3] = -kInfinity;
    v.back() = kNaN;
  };
  for (int spoiled = 0; spoiled < 4; ++spoiled) {
    CAPTURE(spoiled);
    SampleInputs inputs = sample_inputs(s);
    if (spoiled == 0 || spoiled == 3) spoil(inputs.x);
    if (spoiled == 1 || spoiled == 3) spoil(inputs.grid);
    if (spoiled == 2 || spoiled == 3) spoil(inputs.dy);
    check_sampling(s, inputs);
  }
}

}  // namespace

TEST_CASE("grid_sample kernels: all modes and paddings give the CPU's values") {
  for (const GridMode mode : {GridMode::bilinear, GridMode::nearest, GridMode::bicubic})
    for (const GridPadding padding : {GridPadding::zeros, GridPadding::border, GridPadding::reflection})
      for (const bool align : {false, true}) {
        GridShape s = image(2, 3, 4, 5, 70, align);
        s.mode = mode, s.padding = padding, s.align_corners = align;
        check_sampling(s);
        if (mode == GridMode::bicubic || align) continue;
        s = volume(2, 3, 33);
        s.mode = mode, s.padding = padding;
        check_sampling(s);
      }
}

TEST_CASE("grid_sample kernels: 7, 8, 9 and 17 channels, in both layouts") {
  for (const std::int64_t c : {7, 8, 9, 17})
    for (const bool channels_last : {false, true}) check_sampling(image(1, c, 3, 3, 40, channels_last));
}

TEST_CASE(
    "grid_sample kernels: pixels that no point reads get gradient 0, and a pixel that all read their sum") {
  const GridShape s = image(1, 2, 3, 3, 300, false);
  const Values grid(size(s.points * 2), 0.0);  // the centre
  const Block<float> points(grid), dy(Values(size(s.c * s.points), 1.0)), dx(Values(18, 77));
  gpu::launch_grid_sample_backward_input<float>(
      {}, {.shape = s, .grid = points.data(), .dy = dy.data(), .dx = dx.data()});
  Values want(18);
  want[4] = want[13] = 300;
  check_close("dx", dx, want, Values(18));
}

TEST_CASE("grid_sample kernels: coordinates that are not finite give the CPU's values") {
  for (const GridPadding padding : {GridPadding::zeros, GridPadding::border}) {
    GridShape s = image(1, 2, 3, 4, 4, false);
    s.padding = padding;
    const Values x = numbers(24, 1, 2), grid{kNaN, 0, 0.25, kNaN, kInfinity, 0, 0, -1e30};
    Values y(8);
    kernels::grid_sample(kCPU, DType::f64, {.shape = s, .x = x.data(), .grid = grid.data(), .y = y.data()});
    const Block<float> in(x), points(grid), out(8);
    gpu::launch_grid_sample<float>({}, {.shape = s, .x = in.data(), .grid = points.data(), .y = out.data()});
    check_close("y", out, y, Values(8, 2048));
  }
}

TEST_CASE("grid_sample kernels: NaN and infinities in every input reach what they reach on the CPU") {
  for (const GridMode mode : {GridMode::bilinear, GridMode::nearest, GridMode::bicubic})
    for (const GridPadding padding : {GridPadding::zeros, GridPadding::border, GridPadding::reflection})
      for (const bool channels_last : {false, true}) {
        GridShape s = image(2, 3, 4, 5, 20, channels_last);
        s.mode = mode, s.padding = padding;
        check_not_finite(s);
        s = volume(2, 3, 20);
        s.mode = mode, s.padding = padding;
        if (mode != GridMode::bicubic && !channels_last) check_not_finite(s);
      }
}

TEST_CASE("grid_sample kernels: empty tensors launch nothing") {
  cuda_emulator::take_launches();
  gpu::launch_grid_sample<float>({}, {.shape = image(0, 2, 3, 3, 4, false)});
  gpu::launch_grid_sample_backward_input<float>({}, {.shape = image(0, 2, 3, 3, 4, false)});
  gpu::launch_grid_sample_backward_grid<float>({}, {.shape = image(1, 2, 3, 3, 0, false)});
  CHECK(cuda_emulator::take_launches().empty());
}
