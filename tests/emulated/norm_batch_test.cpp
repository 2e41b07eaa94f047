// Tests that the batch normalization kernels (f32, bf16) match the CPU's f64 results on every launch path,
// for ragged sizes, misaligned arrays and extreme values.
#include "tapestry/kernels/cuda/norm_batch.cuh"

#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "tests/emulated/values.h"

using namespace tapestry;
using namespace tapestry::kernels;
namespace gpu = tapestry::kernels::cuda;
using namespace emulated;
using tapestry::kernels::batch_norm;

namespace {

struct Inputs {
  BatchNormShape shape;
  bool affine;
  Values x, dy, weight, bias;

  Inputs(std::int64_t n, std::int64_t c, std::int64_t l, bool with_affine = true, double offset = 0)
      : shape{.n = n, .c = c, .l = l},
        affine(with_affine),
        x(numbers(n * c * l, 1, 2)),
        dy(numbers(n * c * l, 2, 1)),
        weight(numbers(c, 3, 2)),
        bias(numbers(c, 4, 1)) {
    for (double& v : x) v += offset;
  }
  std::size_t channel(std::size_t i) const {
    return i / static_cast<std::size_t>(shape.l) % static_cast<std::size_t>(shape.c);
  }
};

constexpr double kEps = 1e-5, kMomentum = 0.25;

/// The CPU's results in f64, and bounds of the errors of f32 kernels in unit roundoffs.
struct Wanted {
  Values mean, var, inv_std, running_mean, running_var, y, dx, dweight, dbias, dx_eval;
  Values mean_error, var_error, inv_std_error, running_mean_error, running_var_error;
  Values y_error, dx_error, dweight_error, dbias_error, dx_eval_error;

  explicit Wanted(const Inputs& in) {
    const auto c = static_cast<std::size_t>(in.shape.c), size = in.x.size();
    for (Values* v : {&mean, &var, &inv_std, &dweight, &dbias, &mean_error, &var_error, &inv_std_error,
                      &running_mean_error, &running_var_error, &dweight_error, &dbias_error})
      v->resize(c);
    running_mean = in.bias, running_var = in.weight;
    for (Values* v : {&y, &dx, &dx_eval, &y_error, &dx_error, &dx_eval_error}) v->resize(size);
    const double *const weight = in.affine ? in.weight.data() : nullptr, *const bias = in.affine
                                                                                           ? in.bias.data()
                                                                                           : nullptr;
    const std::int64_t total = in.shape.n * in.shape.l;
    batch_norm_stats(kCPU, DType::f64,
                     {.shape = in.shape,
                      .x = in.x.data(),
                      .mean = mean.data(),
                      .var = var.data(),
                      .running_mean = running_mean.data(),
                      .running_var = total > 1 ? running_var.data() : nullptr,
                      .momentum = kMomentum});
    const double count = static_cast<double>(total), sum_error = roundings(total);
    Values largest(c);
    for (std::size_t i = 0; i < size; ++i) {
      const std::size_t k = in.channel(i);
      mean_error[k] += sum_error * std::abs(in.x[i]) / count;
      largest[k] = std::max(largest[k], std::abs(in.x[i]));
    }
    for (std::size_t k = 0; k < c; ++k) {  // the mean of each chunk is rounded
      const double e = 8 * largest[k];
      var_error[k] = sum_error * var[k] + 2 * e * std::sqrt(var[k]) + kUnit * e * e;
      const auto inverse = [](double v) { return 1 / std::sqrt(std::max(v, 0.0) + kEps); };
      const double off = kUnit * var_error[k], exact = inverse(var[k]);
      inv_std_error[k] =
          4 * exact + std::max(inverse(var[k] - off) - exact, exact - inverse(var[k] + off)) / kUnit;
      inv_std[k] = static_cast<float>(exact);
      running_mean_error[k] = kMomentum * mean_error[k] + 4 * (std::abs(mean[k]) + std::abs(in.bias[k]));
      running_var_error[k] = 2 * kMomentum * var_error[k] + 8 * (var[k] + std::abs(in.weight[k]));
    }
    Values given = mean;
    for (double& m : given) m = static_cast<float>(m);  // the statistics passed to the other kernels
    batch_norm(kCPU, DType::f64,
               {.shape = in.shape,
                .x = in.x.data(),
                .mean = given.data(),
                .inv_std = inv_std.data(),
                .weight = weight,
                .bias = bias,
                .y = y.data()});
    BatchNormBackwardArgs backward{.shape = in.shape,
                                   .dy = in.dy.data(),
                                   .x = in.x.data(),
                                   .mean = given.data(),
                                   .inv_std = inv_std.data(),
                                   .weight = weight,
                                   .training = true,
                                   .dx = dx.data(),
                                   .dweight = dweight.data(),
                                   .dbias = dbias.data()};
    batch_norm_backward(kCPU, DType::f64, backward);
    backward.training = false;
    backward.dx = dx_eval.data(), backward.dweight = backward.dbias = nullptr;
    batch_norm_backward(kCPU, DType::f64, backward);
    const auto slope = [&](std::size_t k) { return inv_std[k] * (weight ? std::abs(weight[k]) : 1); };
    for (std::size_t i = 0; i < size; ++i) {
      const std::size_t k = in.channel(i);
      const double d = std::abs(in.x[i] - given[k]);
      y_error[i] = 4 * d * slope(k) + 4;
      dbias_error[k] += sum_error * std::abs(in.dy[i]);
      dweight_error[k] += sum_error * std::abs(in.dy[i]) * d * inv_std[k];
      dx_eval_error[i] = 4 * std::abs(dx_eval[i]);
    }
    for (std::size_t i = 0; i < size; ++i) {
      const std::size_t k = in.channel(i);
      const double normal = std::abs(in.x[i] - given[k]) * inv_std[k];
      dx_error[i] =
          slope(k) * (4 * std::abs(in.dy[i]) + 2 * (dbias_error[k] + normal * dweight_error[k]) / count);
    }
    mean = given;
  }
};

template <class T>
void check_batch_norm(const Inputs& in, std::size_t offset = 0) {
  CAPTURE(in.shape.n, in.shape.c, in.shape.l, in.affine, offset, sizeof(T));
  const Wanted want(in);
  const std::size_t c = want.mean.size();
  in_each_order([&] {
    const Block<T> x(in.x, offset), dy(in.dy, offset), weight(in.weight), bias(in.bias),
        y(in.x.size(), offset);
    const Block<float> mean(c), var(c), inverse(c), given(want.mean), inv_std(want.inv_std);
    const Block<T> running_mean(in.bias), running_var(in.weight);
    const bool several = in.shape.n * in.shape.l > 1;
    gpu::launch_batch_norm_stats<T>({}, {.shape = in.shape,
                                         .x = x.data(),
                                         .mean = mean.data(),
                                         .var = var.data(),
                                         .inv_std = inverse.data(),
                                         .eps = kEps,
                                         .running_mean = running_mean.data(),
                                         .running_var = several ? running_var.data() : nullptr,
                                         .momentum = kMomentum});
    check_close("mean", mean, want.mean, want.mean_error);
    check_close("var", var, want.var, want.var_error);
    check_close("inv_std", inverse, want.inv_std, want.inv_std_error);
    check_close("running_mean", running_mean, want.running_mean, want.running_mean_error);
    check_close("running_var", running_var, want.running_var, want.running_var_error);
    const T *const w = in.affine ? weight.data() : nullptr, *const b = in.affine ? bias.data() : nullptr;
    gpu::launch_batch_norm<T>({}, {.shape = in.shape,
                                   .x = x.data(),
                                   .mean = given.data(),
                                   .inv_std = inv_std.data(),
                                   .weight = w,
                                   .bias = b,
                                   .y = y.data()});
    check_close("y", y, want.y, want.y_error);
    const Block<T> dx(Values(in.x.size(), 77), offset), dweight(Values(c, 77)), dbias(Values(c, 77));
    BatchNormBackwardArgs backward{.shape = in.shape,
                                   .dy = dy.data(),
                                   .x = x.data(),
                                   .mean = given.data(),
                                   .inv_std = inv_std.data(),
                                   .weight = w,
                                   .training = true,
                                   .dx = dx.data(),
                                   .dweight = dweight.data(),
                                   .dbias = dbias.data()};
    gpu::launch_batch_norm_backward<T>({}, backward);
    check_close("dx", dx, want.dx, want.dx_error);
    check_close("dweight", dweight, want.dweight, want.dweight_error);
    check_close("dbias", dbias, want.dbias, want.dbias_error);
    backward.training = false;
    backward.dweight = backward.dbias = nullptr;
    gpu::launch_batch_norm_backward<T>({}, backward);
    check_close("dx, evaluation", dx, want.dx_eval, want.dx_eval_error);
  });
}
/// With a residual and a relu. Backward gets a result of relu that is independent of forward's.
template <class T>
void check_relu(const Inputs& in, bool with_residual, std::size_t offset = 0) {
  CAPTURE(in.shape.n, in.shape.c, in.shape.l, with_residual, offset, sizeof(T));
  const Wanted want(in);
  const std::size_t c = want.mean.size(), size = in.x.size();
  const Values residual = numbers(in.shape.n * in.shape.c * in.shape.l, 7, 2);
  Values relu_y = numbers(in.shape.n * in.shape.c * in.shape.l, 8, 1), wanted_y(size), error = want.y_error;
  for (double& v : relu_y) v = std::max(v, 0.0);
  for (std::size_t i = 0; i < size; ++i) error[i] += 4 * std::abs(residual[i]);
  batch_norm(kCPU, DType::f64,
             {.shape = in.shape,
              .x = in.x.data(),
              .mean = want.mean.data(),
              .inv_std = want.inv_std.data(),
              .weight = in.weight.data(),
              .bias = in.bias.data(),
              .y = wanted_y.data(),
              .residual = with_residual ? residual.data() : nullptr,
              .relu = true});
  for (const bool training : {true, false}) {
    Values wanted_dx(size), wanted_also(size), dweight(c), dbias(c);
    batch_norm_backward(kCPU, DType::f64,
                        {.shape = in.shape,
                         .dy = in.dy.data(),
                         .x = in.x.data(),
                         .mean = want.mean.data(),
                         .inv_std = want.inv_std.data(),
                         .weight = in.weight.data(),
                         .training = training,
                         .dx = wanted_dx.data(),
                         .dweight = dweight.data(),
                         .dbias = dbias.data(),
                         .relu_y = relu_y.data(),
                         .dresidual = wanted_also.data()});
    for (std::size_t i = 0; i < size; ++i) CHECK(wanted_also[i] == (relu_y[i] > 0 ? in.dy[i] : 0));
    in_each_order([&] {
      const Block<T> x(in.x, offset), dy(in.dy, offset), weight(in.weight), bias(in.bias), y(size, offset),
          added(residual, offset), from(relu_y, offset);
      const Block<float> mean(want.mean), inv_std(want.inv_std);
      gpu::launch_batch_norm<T>({}, {.shape = in.shape,
                                     .x = x.data(),
                                     .mean = mean.data(),
                                     .inv_std = inv_std.data(),
                                     .weight = weight.data(),
                                     .bias = bias.data(),
                                     .y = y.data(),
                                     .residual = with_residual ? added.data() : nullptr,
                                     .relu = true});
      check_close("y", y, wanted_y, error);
      const Block<T> dx(Values(size, 77), offset), also(Values(size, 77), offset), dw(c), db(c);
      gpu::launch_batch_norm_backward<T>({}, {.shape = in.shape,
                                              .dy = dy.data(),
                                              .x = x.data(),
                                              .mean = mean.data(),
                                              .inv_std = inv_std.data(),
                                              .weight = weight.data(),
                                              .training = training,
                                              .dx = dx.data(),
                                              .dweight = dw.data(),
                                              .dbias = db.data(),
                                              .relu_y = from.data(),
                                              .dresidual = with_residual ? also.data() : nullptr});
      check_close("dx", dx, wanted_dx, training ? want.dx_error : want.dx_eval_error);
      check_close("dweight", dw, dweight, want.dweight_error);
      check_close("dbias", db, dbias, want.dbias_error);
      if (with_residual) check_close("dresidual", also, wanted_also, Values(size));
    });
  }
}
void check_both(const Inputs& in, std::size_t offset = 0) {
  for_float_dtypes([&]<class T>() { check_batch_norm<T>(in, offset); });
}

}  // namespace

TEST_CASE("batch norm kernels: column kernels (l = 1) give the CPU's values for ragged rows and channels") {
  for (const std::int64_t c : {1, 3, 4, 8, 12, 40, 64, 132, 264}) check_both({37, c, 1});
  for (const std::int64_t n : {1, 2, 8, 33, 130}) check_both({n, 128, 1});
  check_both({2050, 4, 1});
  check_both({1100, 1, 1});
}

TEST_CASE("batch norm kernels: plane kernels (l > 1) give the CPU's values for ragged planes") {
  for (const std::int64_t l : {2, 4, 5, 8, 49, 64}) check_both({5, 3, l});
  check_both({3, 70, 16});
  check_both({2, 1, 8200});  // several chunks, one of which starts within a plane
  check_both({45, 2, 49});
  check_both({1, 1, 2053});
}

TEST_CASE("batch norm kernels: misaligned arrays give the same values") {
  check_both({9, 16, 1}, 1);
  check_both({9, 3, 16}, 1);
}

TEST_CASE("batch norm kernels: a residual and a relu, and their gradients, on every path") {
  for (const bool residual : {true, false}) {
    for_float_dtypes([&]<class T>() { check_relu<T>({37, 12, 1}, residual); });
    for_float_dtypes([&]<class T>() { check_relu<T>({5, 3, 16}, residual); });
    check_relu<float>({5, 3, 49}, residual);
    check_relu<float>({9, 16, 1}, residual, 1);
  }
}

TEST_CASE("batch norm kernels: a mean of 1024 standard deviations costs few digits of the variance") {
  check_batch_norm<float>({200, 8, 1, true, 1024});
  check_batch_norm<float>({200, 3, 1, true, 1024});
  check_batch_norm<float>({3, 2, 700, true, 1024});
}

TEST_CASE("batch norm kernels: a mean whose square overflows f32 gives finite statistics") {
  for (const std::int64_t l : {1, 7, 16}) check_batch_norm<float>({40, 8, l, true, 0x1p70});
}

TEST_CASE("batch norm kernels: the results of many chunks are merged exactly once") {
  check_batch_norm<float>({2100, 33, 1});
}

TEST_CASE("batch norm kernels: each gradient can be computed alone") {
  for (const std::int64_t l : {1, 7, 16})
    for (const int asked : {1, 2, 4}) {
      CAPTURE(l, asked);
      const Inputs in(9, 8, l);
      const Wanted want(in);
      const Block<float> x(in.x), dy(in.dy), weight(in.weight), mean(want.mean), inv_std(want.inv_std);
      const Block<float> dx(in.x.size()), dweight(8), dbias(8);
      gpu::launch_batch_norm_backward<float>({}, {.shape = in.shape,
                                                  .dy = dy.data(),
                                                  .x = x.data(),
                                                  .mean = mean.data(),
                                                  .inv_std = inv_std.data(),
                                                  .weight = weight.data(),
                                                  .training = true,
                                                  .dx = asked & 1 ? dx.data() : nullptr,
                                                  .dweight = asked & 2 ? dweight.data() : nullptr,
                                                  .dbias = asked & 4 ? dbias.data() : nullptr});
      if (asked & 1) check_close("dx", dx, want.dx, want.dx_error);
      if (asked & 2) check_close("dweight", dweight, want.dweight, want.dweight_error);
      if (asked & 4) check_close("dbias", dbias, want.dbias, want.dbias_error);
    }
}

TEST_CASE("batch norm kernels: each statistic can be computed alone") {
  const Inputs in(9, 8, 7);
  const Block<float> x(in.x);
  const auto ask = [&](auto member) {
    const Block<float> out(in.weight);
    BatchNormStatsArgs to{.shape = in.shape, .x = x.data(), .eps = kEps, .momentum = kMomentum};
    to.*member = out.data();
    gpu::launch_batch_norm_stats<float>({}, to);
    return Values(out.data(), out.data() + out.size());
  };
  const Values mean = ask(&BatchNormStatsArgs::mean), var = ask(&BatchNormStatsArgs::var);
  const Values inv_std = ask(&BatchNormStatsArgs::inv_std),
               running_mean = ask(&BatchNormStatsArgs::running_mean),
               running_var = ask(&BatchNormStatsArgs::running_var);
  for (std::size_t k = 0; k < mean.size(); ++k) {
    CHECK(inv_std[k] == Approx(1 / std::sqrt(var[k] + kEps)));
    CHECK(running_mean[k] == Approx(0.75 * in.weight[k] + 0.25 * mean[k]));
    CHECK(running_var[k] == Approx(0.75 * in.weight[k] + 0.25 * var[k] * 63 / 62));
  }
}

TEST_CASE("batch norm kernels: NaN affects only its own channel") {
  for (const std::int64_t l : {1, 7, 16}) {
    Inputs in(40, 8, l);
    for (std::size_t i = 0, bad = 0; i < in.x.size(); ++i)
      if (in.channel(i) == 3 && ++bad == 20) in.x[i] = kNaN;
    const Block<float> x(in.x), mean(8), var(8);
    gpu::launch_batch_norm_stats<float>(
        {}, {.shape = in.shape, .x = x.data(), .mean = mean.data(), .var = var.data()});
    for (std::size_t k = 0; k < 8; ++k) {
      CHECK(std::isnan(mean[k]) == (k == 3));
      CHECK(std::isnan(var[k]) == (k == 3));
    }
  }
}

TEST_CASE("batch norm kernels: empty tensors launch nothing, and their gradients are zero") {
  cuda_emulator::take_launches();
  gpu::launch_batch_norm_stats<float>({}, {.shape = {.n = 4, .c = 0}});
  gpu::launch_batch_norm<float>({}, {.shape = {.n = 0, .c = 4}});
  CHECK(cuda_emulator::take_launches().empty());
  const Block<float> numbers(4), dweight(Values(4, 77)), dbias(Values(4, 77));
  gpu::launch_batch_norm_backward<float>({}, {.shape = {.n = 0, .c = 4},
                                              .mean = numbers.data(),
                                              .inv_std = numbers.data(),
                                              .training = true,
                                              .dweight = dweight.data(),
                                              .dbias = dbias.data()});
  for (std::size_t i = 0; i < 4; ++i) CHECK((dweight[i] == 0 && dbias[i] == 0));
}

TEST_CASE("batch norm kernels: shape and alignment choose the kernel") {
  const auto kernels = [](std::int64_t c, std::int64_t l, std::size_t offset) {
    const Inputs in(40, c, l);
    const auto channels = static_cast<std::size_t>(c);
    const Block<float> x(in.x, offset), y(in.x.size(), offset), mean(channels), var(channels);
    return kernels_of([&] {
      gpu::launch_batch_norm_stats<float>(
          {}, {.shape = in.shape, .x = x.data(), .mean = mean.data(), .var = var.data()});
      gpu::launch_batch_norm<float>(
          {}, {.shape = in.shape, .x = x.data(), .mean = mean.data(), .inv_std = var.data(), .y = y.data()});
    });
  };
  const auto check = [](const std::string& launched, const char* kind, const std::string& v) {
    CHECK_THAT(launched,
               ContainsSubstring(std::string("reduce_") + kind + "INS1_9MomentsOfIfEELi" + v + "E"));
    CHECK_THAT(launched, ContainsSubstring(std::string("map_") + kind + "INS1_9MapNormalIfEELi" + v + "E"));
    CHECK_THAT(launched, ContainsSubstring("finish_channels"));
  };
  check(kernels(8, 1, 0), "columns", "4");
  check(kernels(8, 1, 1), "columns", "1");
  check(kernels(9, 1, 0), "columns", "1");
  check(kernels(3, 16, 0), "planes", "4");
  check(kernels(3, 49, 0), "planes", "1");
}

TEST_CASE("batch norm kernels: f16 gives the CPU's values, by packs and by single elements") {
  for (const auto& [n, c, l] : {std::array<std::int64_t, 3>{37, 40, 1}, {37, 3, 1}, {5, 3, 64}, {5, 3, 49}})
    check_batch_norm<Half>({n, c, l});
}
