// Tests that group normalization kernels match the CPU's kernels in f64 in both layouts, for ragged sizes and
// extremes.
#include "tapestry/kernels/cuda/norm_group.cuh"

#include <cmath>
#include <vector>

#include "tests/emulated/values.h"

using namespace tapestry;
using namespace tapestry::kernels;
namespace gpu = tapestry::kernels::cuda;
using namespace emulated;
using tapestry::kernels::group_norm;

namespace {

/// Inputs that are exact in every dtype.
struct Inputs {
  GroupNormShape shape;
  Values x, dy, weight, bias;
  bool affine;
  double eps = 1e-5;

  explicit Inputs(const GroupNormShape& s, bool with_affine = true, double offset = 0)
      : shape(s),
        x(numbers(s.n * s.c * s.l, 1, 2)),
        dy(numbers(s.n * s.c * s.l, 2, 1)),
        weight(numbers(s.c, 3, 2)),
        bias(numbers(s.c, 4, 1)),
        affine(with_affine) {
    for (double& v : x) v += offset;
  }
  std::size_t stats() const { return static_cast<std::size_t>(shape.n * shape.groups); }
};

/// The CPU's results in f64, and bounds of the errors of f32 kernels in unit roundoffs.
struct Wanted {
  Values y, mean, inv_std, var, y_error, mean_error, inv_std_error, var_error;
  Values dx, dweight, dbias, dx_error, dweight_error, dbias_error;

  explicit Wanted(const Inputs& in) {
    const GroupNormShape& s = in.shape;
    const auto all = in.x.size(), c = static_cast<std::size_t>(s.c), groups = in.stats();
    for (Values* v : {&y, &dx, &y_error, &dx_error}) v->resize(all);
    for (Values* v : {&mean, &inv_std, &var, &mean_error, &inv_std_error, &var_error}) v->resize(groups);
    for (Values* v : {&dweight, &dbias, &dweight_error, &dbias_error}) v->resize(c);
    const double* const weight = in.affine ? in.weight.data() : nullptr;
    group_norm(kCPU, DType::f64,
               {.shape = s,
                .x = in.x.data(),
                .weight = weight,
                .bias = in.affine ? in.bias.data() : nullptr,
                .eps = in.eps,
                .y = y.data(),
                .mean = mean.data(),
                .inv_std = inv_std.data(),
                .var = var.data()});
    const auto width = s.c / s.groups;
    const double count = static_cast<double>(width * s.l), sum_error = roundings(width * s.l);
    const auto channel_of = [&](std::size_t i) {
      return s.channels_last ? i % c : i / static_cast<std::size_t>(s.l) % c;
    };
    const auto group_of = [&](std::size_t i) {
      return i / (c * static_cast<std::size_t>(s.l)) * static_cast<std::size_t>(s.groups) +
             channel_of(i) / static_cast<std::size_t>(width);
    };
    for (std::size_t i = 0; i < all; ++i) mean_error[group_of(i)] += sum_error * std::abs(in.x[i]) / count;
    for (std::size_t g = 0; g < groups; ++g) {
      const double relative = sum_error + 4 + kUnit * mean_error[g] * mean_error[g] / (var[g] + in.eps);
      inv_std_error[g] = inv_std[g] * relative;
      var_error[g] = 2 * (var[g] + in.eps) * relative;
    }
    for (std::size_t i = 0; i < all; ++i) {
      const std::size_t g = group_of(i);
      const double w = weight ? std::abs(weight[channel_of(i)]) : 1, d = std::abs(in.x[i] - mean[g]);
      y_error[i] = w * (inv_std[g] * (mean_error[g] + 4 * d) + d * inv_std_error[g]) + 4;
    }
    for (Values* v : {&mean, &inv_std})
      for (double& x : *v) x = static_cast<float>(x);  // the statistics passed to backward
    GroupNormBackwardArgs b{.shape = s,
                            .dy = in.dy.data(),
                            .x = in.x.data(),
                            .mean = mean.data(),
                            .inv_std = inv_std.data(),
                            .weight = weight};
    b.dx = dx.data(), b.dweight = dweight.data(), b.dbias = dbias.data();
    group_norm_backward(kCPU, DType::f64, b);
    Values plain(groups), along(groups);  // magnitudes of the terms
    const auto g_of = [&](std::size_t i) {
      return std::abs(in.dy[i] * (weight ? weight[channel_of(i)] : 1));
    };
    const auto normal = [&](std::size_t i) {
      return std::abs(in.x[i] - mean[group_of(i)]) * inv_std[group_of(i)];
    };
    for (std::size_t i = 0; i < all; ++i) {
      plain[group_of(i)] += g_of(i) / count;
      along[group_of(i)] += g_of(i) * normal(i) / count;
      dweight_error[channel_of(i)] += roundings(s.n * s.l) * std::abs(in.dy[i]) * normal(i);
      dbias_error[channel_of(i)] += roundings(s.n * s.l) * std::abs(in.dy[i]);
    }
    for (std::size_t i = 0; i < all; ++i) {
      const std::size_t g = group_of(i);
      dx_error[i] = inv_std[g] * (8 * g_of(i) + (sum_error + 8) * (plain[g] + normal(i) * along[g]));
    }
  }
};

template <class T>
void check_group_norm(const Inputs& in, std::size_t offset = 0) {
  const GroupNormShape& s = in.shape;
  CAPTURE(s.n, s.c, s.l, s.groups, s.channels_last, in.affine, offset, sizeof(T));
  const Wanted want(in);
  in_each_order([&] {
    const Block<T> x(in.x, offset), dy(in.dy, offset), weight(in.weight), bias(in.bias),
        out(in.x.size(), offset);
    const Block<float> mean(in.stats()), inv_std(in.stats()), var(in.stats());
    GroupNormArgs a{.shape = s, .x = x.data(), .eps = in.eps};
    if (in.affine) a.weight = weight.data(), a.bias = bias.data();
    a.y = out.data(), a.mean = mean.data(), a.inv_std = inv_std.data(), a.var = var.data();
    gpu::launch_group_norm<T>({}, a);
    check_close("y", out, want.y, want.y_error);
    check_close("inv_std", inv_std, want.inv_std, want.inv_std_error);
    check_close("var", var, want.var, want.var_error);
    const Block<float> given_mean(want.mean), given_inv_std(want.inv_std);
    const Block<T> dx(Values(in.x.size(), 77), offset), dweight(Values(in.weight.size(), 77)),
        dbias(Values(in.weight.size(), 77));
    GroupNormBackwardArgs b{.shape = s,
                            .dy = dy.data(),
                            .x = x.data(),
                            .mean = given_mean.data(),
                            .inv_std = given_inv_std.data()};
    if (in.affine) b.weight = weight.data();
    b.dx = dx.data(), b.dweight = dweight.data(), b.dbias = dbias.data();
    gpu::launch_group_norm_backward<T>({}, b);
    check_close("dx", dx, want.dx, want.dx_error);
    check_close("dweight", dweight, want.dweight, want.dweight_error);
    check_close("dbias", dbias, want.dbias, want.dbias_error);
  });
}
void check_both(const GroupNormShape& shape, bool affine = true, std::size_t offset = 0) {
  for_float_dtypes([&]<class T>() { check_group_norm<T>(Inputs(shape, affine), offset); });
}

}  // namespace

TEST_CASE("group norm kernels: planes of every size give the CPU's values") {
  // Groups of 1 to 9 channels, so 8 to 1 warps share a channel and some warps have several channels. Planes
  // of 1 to 1031 elements: one warp's batch of loads is 128 packs, so the longest needs a second one.
  const GroupNormShape shapes[] = {
      {.n = 2, .c = 6, .l = 1, .groups = 2},   {.n = 3, .c = 4, .l = 7, .groups = 4},
      {.n = 2, .c = 4, .l = 33, .groups = 2},  {.n = 1, .c = 9, .l = 49, .groups = 1},
      {.n = 2, .c = 10, .l = 8, .groups = 1},  {.n = 1, .c = 3, .l = 1031, .groups = 3},
      {.n = 1, .c = 8, .l = 264, .groups = 2}, {.n = 2, .c = 20, .l = 16, .groups = 2},
  };
  for (const GroupNormShape& shape : shapes) check_both(shape);
}

TEST_CASE("group norm kernels: channels-last groups of every size give the CPU's values") {
  // Groups of 3 and 48 channels do not divide the block's threads; those of more than 256 packs need a second
  // tile of columns.
  const GroupNormShape shapes[] = {
      {.n = 2, .c = 6, .l = 5, .groups = 2, .channels_last = true},
      {.n = 1, .c = 8, .l = 700, .groups = 1, .channels_last = true},
      {.n = 3, .c = 8, .l = 3, .groups = 8, .channels_last = true},
      {.n = 2, .c = 48, .l = 9, .groups = 2, .channels_last = true},
      {.n = 1, .c = 261, .l = 2, .groups = 1, .channels_last = true},
      {.n = 1, .c = kOnlyRaces ? 1032 : 2056, .l = 2, .groups = 1, .channels_last = true},
  };
  for (const GroupNormShape& shape : shapes) check_both(shape);
}

TEST_CASE("group norm kernels: without weight and bias, misaligned, and many samples") {
  for (const bool last : {false, true}) {
    check_both({.n = 2, .c = 8, .l = 16, .groups = 2, .channels_last = last}, false);
    check_both({.n = 2, .c = 8, .l = 16, .groups = 2, .channels_last = last}, true, 1);
    check_group_norm<float>(Inputs({.n = 70, .c = 4, .l = 4, .groups = 1, .channels_last = last}));
  }
}

TEST_CASE("group norm kernels: a mean of 1024 costs no digits of the variance") {
  for (const bool last : {false, true})
    for (const std::int64_t l : {15, 64, 520})
      check_group_norm<float>(
          Inputs({.n = 1, .c = 8, .l = l, .groups = 2, .channels_last = last}, true, 1024));
}

TEST_CASE(
    "group norm kernels: zero variance gives the bias; infinities and NaN affect only their own group") {
  for (const bool last : {false, true}) {
    const GroupNormShape shape{.n = 2, .c = 4, .l = 9, .groups = 2, .channels_last = last};
    Inputs in(shape);
    const auto at = [&](std::int64_t n, std::int64_t c, std::int64_t i) {
      return static_cast<std::size_t>(last ? (n * 9 + i) * 4 + c : (n * 4 + c) * 9 + i);
    };
    for (std::int64_t c = 0; c < 2; ++c)
      for (std::int64_t i = 0; i < 9; ++i) in.x[at(0, c, i)] = 3;
    in.x[at(0, 3, 8)] = kNaN;
    in.x[at(1, 0, 4)] = kInfinity;
    in_each_order([&] {
      const Block<float> x(in.x), bias(in.bias), y(in.x.size()), mean(4), inv_std(4);
      GroupNormArgs a{.shape = shape, .x = x.data(), .bias = bias.data(), .eps = 1e-5};
      a.y = y.data(), a.mean = mean.data(), a.inv_std = inv_std.data();
      gpu::launch_group_norm<float>({}, a);
      for (std::int64_t i = 0; i < 9; ++i) {
        CHECK(y[at(0, 1, i)] == static_cast<float>(in.bias[1]));
        CHECK(std::isnan(y[at(0, 2, i)]));
        CHECK(std::isnan(y[at(1, 1, i)]));
        CHECK(std::isfinite(y[at(1, 3, i)]));
      }
    });
  }
}

TEST_CASE("group norm kernels: each gradient can be computed alone") {
  for (const bool last : {false, true})
    for (const int asked : {1, 2, 4}) {
      CAPTURE(last, asked);
      const GroupNormShape shape{.n = 3, .c = 6, .l = 10, .groups = 3, .channels_last = last};
      const Inputs in(shape);
      const Wanted want(in);
      const Block<float> x(in.x), dy(in.dy), weight(in.weight), mean(want.mean), inv_std(want.inv_std);
      const Block<float> dx(in.x.size()), dweight(in.weight.size()), dbias(in.weight.size());
      GroupNormBackwardArgs s{.shape = shape,
                              .dy = dy.data(),
                              .x = x.data(),
                              .mean = mean.data(),
                              .inv_std = inv_std.data(),
                              .weight = weight.data()};
      if (asked & 1) s.dx = dx.data();
      if (asked & 2) s.dweight = dweight.data();
      if (asked & 4) s.dbias = dbias.data();
      gpu::launch_group_norm_backward<float>({}, s);
      if (asked & 1) check_close("dx", dx, want.dx, want.dx_error);
      if (asked & 2) check_close("dweight", dweight, want.dweight, want.dweight_error);
      if (asked & 4) check_close("dbias", dbias, want.dbias, want.dbias_error);
    }
}

TEST_CASE("group norm kernels: empty tensors launch nothing") {
  cuda_emulator::take_launches();
  for (const GroupNormShape& shape : {GroupNormShape{.n = 0, .c = 4, .l = 3, .groups = 2},
                                      GroupNormShape{.n = 2, .c = 4, .l = 0, .groups = 2}}) {
    gpu::launch_group_norm<float>({}, {.shape = shape});
    gpu::launch_group_norm_backward<float>({}, {.shape = shape});
  }
  CHECK(cuda_emulator::take_launches().empty());
}

TEST_CASE("group norm kernels: f16 gives the CPU's values, by packs and by single elements") {
  for (const bool last : {false, true})
    for (const std::int64_t l : {7, 16})
      check_group_norm<Half>(
          Inputs({.n = 2, .c = l == 7 ? 6 : 32, .l = l, .groups = 2, .channels_last = last}), 0);
}
