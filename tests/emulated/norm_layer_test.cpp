// Tests that layer and RMS normalization kernels match the CPU's kernels in f64 on every launch path, for
// ragged sizes and extremes.
#include "tapestry/kernels/cuda/norm_layer.cuh"

#include <cmath>
#include <string>
#include <vector>

#include "tests/emulated/values.h"

using namespace tapestry;
using namespace tapestry::kernels;
namespace gpu = tapestry::kernels::cuda;
using namespace emulated;
using tapestry::kernels::layer_norm, tapestry::kernels::rms_norm;

namespace {

/// Inputs of a (rows, cols) layer norm, which are exact in every dtype.
struct Inputs {
  std::int64_t rows, cols;
  Values x, dy, weight, bias;
  bool affine;
  double eps = 1e-5;
  bool centred = true;  // false: RMS normalization, which has neither mean nor bias
  /// If not empty, forward normalises first + residual, which is x exactly, and backward adds dsum.
  Values first, residual, dsum;

  Inputs(std::int64_t r, std::int64_t c, bool with_affine = true, double offset = 0)
      : rows(r),
        cols(c),
        x(numbers(r * c, 1, 2)),
        dy(numbers(r * c, 2, 1)),
        weight(numbers(c, 3, 2)),
        bias(numbers(c, 4, 1)),
        affine(with_affine) {
    for (double& v : x) v += offset;
  }
  /// The sums are exact in bf16.
  Inputs& with_residual() {
    const auto coarse = [](double v) { return std::round(v * 8) / 8; };
    residual = numbers(rows * cols, 5, 2);
    dsum = numbers(rows * cols, 6, 1);
    for (std::size_t i = 0; i < x.size(); ++i) {
      residual[i] = coarse(residual[i]);
      first.push_back(coarse(x[i]));
      x[i] = first[i] + residual[i];
    }
    return *this;
  }
  bool biased() const { return affine && centred; }
  std::size_t at(std::int64_t row, std::int64_t col) const {
    return static_cast<std::size_t>(row * cols + col);
  }
};

/// The CPU's results in f64, and bounds of the errors of f32 kernels in unit roundoffs.
struct Wanted {
  Values y, mean, inv_std, y_error, mean_error, inv_std_error;
  Values dx, dweight, dbias, dx_error, dweight_error, dbias_error;

  explicit Wanted(const Inputs& in) {
    const auto n = static_cast<std::size_t>(in.rows), c = static_cast<std::size_t>(in.cols);
    for (Values* v : {&y, &dx, &y_error, &dx_error}) v->resize(n * c);
    for (Values* v : {&mean, &inv_std, &mean_error, &inv_std_error}) v->resize(n);
    for (Values* v : {&dweight, &dbias, &dweight_error, &dbias_error}) v->resize(c);
    const double* const weight = in.affine ? in.weight.data() : nullptr;
    LayerNormArgs forward{.rows = in.rows,
                          .cols = in.cols,
                          .x = in.x.data(),
                          .weight = weight,
                          .bias = in.biased() ? in.bias.data() : nullptr,
                          .eps = in.eps};
    forward.y = y.data(), forward.inv_std = inv_std.data();
    if (in.centred) forward.mean = mean.data();  // else the mean remains 0
    (in.centred ? layer_norm : rms_norm)(kCPU, DType::f64, forward);
    const double cols = static_cast<double>(in.cols), sum_error = roundings(in.cols);
    for (std::size_t r = 0; r < n; ++r) {
      double size = 0;
      for (std::size_t i = 0; i < c; ++i) size += std::abs(in.x[r * c + i]) / cols;
      mean_error[r] = in.centred ? sum_error * size : 0;
      const double var = 1 / (inv_std[r] * inv_std[r]);  // includes eps
      inv_std_error[r] = inv_std[r] * (sum_error + 4 + kUnit * mean_error[r] * mean_error[r] / var);
      for (std::size_t i = 0; i < c; ++i) {
        const double w = weight ? std::abs(weight[i]) : 1, d = std::abs(in.x[r * c + i] - mean[r]);
        y_error[r * c + i] = w * (inv_std[r] * (mean_error[r] + 4 * d) + d * inv_std_error[r]) + 4;
      }
    }
    for (Values* v : {&mean, &inv_std})
      for (double& x : *v) x = static_cast<float>(x);  // the statistics passed to backward
    LayerNormBackwardArgs s{.rows = in.rows,
                            .cols = in.cols,
                            .dy = in.dy.data(),
                            .x = in.x.data(),
                            .inv_std = inv_std.data(),
                            .weight = weight,
                            .dx = dx.data(),
                            .dweight = dweight.data()};
    if (in.centred) s.mean = mean.data(), s.dbias = dbias.data();
    if (!in.dsum.empty()) s.dsum = in.dsum.data();
    (in.centred ? layer_norm_backward : rms_norm_backward)(kCPU, DType::f64, s);
    for (std::size_t r = 0; r < n; ++r) {
      double plain = 0, along = 0;  // magnitudes of the terms
      const auto g = [&](std::size_t i) { return std::abs(in.dy[r * c + i] * (weight ? weight[i] : 1)); };
      const auto normal = [&](std::size_t i) { return std::abs(in.x[r * c + i] - mean[r]) * inv_std[r]; };
      for (std::size_t i = 0; i < c; ++i) {
        plain += in.centred ? g(i) / cols : 0;
        along += g(i) * normal(i) / cols;
        dweight_error[i] += roundings(in.rows) * std::abs(in.dy[r * c + i]) * normal(i);
        dbias_error[i] += roundings(in.rows) * std::abs(in.dy[r * c + i]);
      }
      for (std::size_t i = 0; i < c; ++i)
        dx_error[r * c + i] = inv_std[r] * (8 * g(i) + (sum_error + 8) * (plain + normal(i) * along)) +
                              (in.dsum.empty() ? 0 : 4 * std::abs(in.dsum[r * c + i]));
    }
  }
};

template <class T>
void check_layer_norm(const Inputs& in, std::size_t offset, int multiprocessors = 132) {
  CAPTURE(in.rows, in.cols, in.affine, offset, sizeof(T));
  const Wanted want(in);
  const auto rows = static_cast<std::size_t>(in.rows);
  in_each_order([&] {
    const Block<T> x(in.x, offset), dy(in.dy, offset), weight(in.weight), bias(in.bias),
        out(in.x.size(), offset);
    const Block<float> mean(rows), inv_std(rows);
    LayerNormArgs a{.rows = in.rows,
                    .cols = in.cols,
                    .x = x.data(),
                    .weight = in.affine ? weight.data() : nullptr,
                    .bias = in.biased() ? bias.data() : nullptr,
                    .eps = in.eps};
    a.y = out.data(), a.inv_std = inv_std.data();
    if (in.centred) a.mean = mean.data();
    const Block<T> first(in.first, offset), residual(in.residual, offset), sum(in.x.size(), offset);
    if (!in.residual.empty()) a.x = first.data(), a.residual = residual.data(), a.sum = sum.data();
    gpu::launch_layer_norm<T>({}, a);
    if (!in.residual.empty()) {
      bool exact = true;
      for (std::size_t i = 0; i < in.x.size(); ++i)
        exact = exact &&
                static_cast<float>(sum[i]) ==
                    static_cast<float>(T(static_cast<float>(first[i]) + static_cast<float>(residual[i])));
      CHECK(exact);
    }
    check_close("y", out, want.y, want.y_error);
    check_close("mean", mean, want.mean, want.mean_error);
    check_close("inv_std", inv_std, want.inv_std, want.inv_std_error);
    const Block<float> given_mean(want.mean), given_inv_std(want.inv_std);
    LayerNormBackwardArgs s{.rows = in.rows,
                            .cols = in.cols,
                            .dy = dy.data(),
                            .x = x.data(),
                            .inv_std = given_inv_std.data(),
                            .weight = in.affine ? weight.data() : nullptr};
    const Block<T> dx(Values(in.x.size(), 77), offset), dweight(Values(in.weight.size(), 77)),
        dbias(Values(in.weight.size(), 77));
    s.dx = dx.data(), s.dweight = dweight.data();
    if (in.centred) s.mean = given_mean.data(), s.dbias = dbias.data();
    const Block<T> dsum(in.dsum, offset);
    if (!in.dsum.empty()) s.dsum = dsum.data();
    gpu::launch_layer_norm_backward<T>({}, s, multiprocessors);
    check_close("dx", dx, want.dx, want.dx_error);
    check_close("dweight", dweight, want.dweight, want.dweight_error);
    if (in.centred) check_close("dbias", dbias, want.dbias, want.dbias_error);
  });
}
void check_both(const Inputs& in, std::size_t offset = 0) {
  for_float_dtypes([&]<class T>() { check_layer_norm<T>(in, offset); });
}

}  // namespace

TEST_CASE("layer norm kernels: rows in registers of a warp or a block give the CPU's values") {
  for (const std::int64_t cols : {1, 4, 7, 8, 31, 33, 64, 256}) check_both({9, cols});
  for (const std::int64_t cols : {264, 777, 1000, 1024}) check_both({5, cols});
  for (const std::int64_t cols : {1025, 1032, 2049, 4096}) check_both({3, cols});
}

TEST_CASE("layer norm kernels: large blocks and streamed rows give the CPU's values") {
  check_both({1, 4104});
  for (const std::int64_t cols : {4097, 8193, 16384, 16385, 16392}) check_both({1, cols});
}

TEST_CASE("layer norm kernels: f16 gives the CPU's values on every path") {
  if (kOnlyRaces) return;  // the kernels synchronize as those of bf16
  for (const std::int64_t cols :
       {255, 256, 1023, 1024, 2047, 2048, 4095, 4096, 8191, 8192, 16383, 16384, 16385, 16392})
    check_layer_norm<Half>({cols > 2048 ? 1 : 3, cols}, 0);
}

TEST_CASE("layer norm kernels: blocks that loop over several rows give the CPU's values") {
  for (const std::int64_t cols : {3, 8}) check_layer_norm<float>({37, cols}, 0, 1);
  for (const std::int64_t cols : {264, 1033}) check_layer_norm<float>({kOnlyRaces ? 9 : 37, cols}, 0, 1);
  for (const std::int64_t cols : {1032, 2056}) check_layer_norm<float>({kOnlyRaces ? 4 : 9, cols}, 0, 1);
  for (const std::int64_t cols : {4104, 8193, 8200}) check_layer_norm<float>({3, cols}, 0, 1);
  if (kOnlyRaces) return;
  for (const std::int64_t cols : {8, 264, 1032, 2056}) check_layer_norm<BFloat16>({19, cols}, 0, 1);
  check_layer_norm<BFloat16>({3, 4104}, 0, 1);
}

TEST_CASE("layer norm kernels: the weight gradients of many blocks are added exactly once") {
  check_layer_norm<float>({290, 8}, 0);
}

TEST_CASE("layer norm kernels: misaligned arrays give the same values") {
  for (const std::int64_t cols : {64, 1032}) check_both({3, cols}, 1);
}

TEST_CASE("layer norm kernels: a mean of 1024 costs no digits of the variance") {
  for (const std::int64_t cols : {16, 33, 264, 1032, 1033, 4104})
    check_layer_norm<float>({3, cols, true, 1024}, 0);
}

TEST_CASE("layer norm kernels: zero variance gives zeros; infinities and NaN affect only their own row") {
  for (const std::int64_t cols : {16, 33, 264, 1032, 1033}) {
    Inputs in(4, cols);
    for (std::int64_t i = 0; i < cols; ++i) in.x[in.at(0, i)] = 3;
    in.x[in.at(1, cols / 2)] = kNaN;
    in.x[in.at(2, cols - 1)] = kInfinity;
    in_each_order([&] {
      const Block<float> x(in.x), y(in.x.size()), mean(4), inv_std(4);
      gpu::launch_layer_norm<float>({}, {.rows = 4,
                                         .cols = cols,
                                         .x = x.data(),
                                         .eps = 1e-5,
                                         .y = y.data(),
                                         .mean = mean.data(),
                                         .inv_std = inv_std.data()});
      for (std::int64_t i = 0; i < cols; ++i) {
        CHECK(y[in.at(0, i)] == 0);
        CHECK(std::isnan(y[in.at(1, i)]));
        CHECK(std::isnan(y[in.at(2, i)]));
        CHECK(std::isfinite(y[in.at(3, i)]));
      }
    });
  }
}

TEST_CASE("layer norm kernels: without a mean they are RMS normalization, on every path") {
  const auto rms = [](std::int64_t rows, std::int64_t cols, bool affine = true) {
    Inputs in(rows, cols, affine, 0.75);  // a mean that is not 0, so that subtracting it would show
    in.centred = false;
    return in;
  };
  for (const std::int64_t cols : {1, 7, 8, 33, 256, 264, 777, 1032, 2049, 4104})
    for_float_dtypes([&]<class T>() { check_layer_norm<T>(rms(3, cols), 0); });
  if (!kOnlyRaces) for_float_dtypes([&]<class T>() { check_layer_norm<T>(rms(1, 16392), 0); });
  check_layer_norm<float>(rms(5, 1032, false), 1);
  for (const std::int64_t cols : {8, 264, 8200}) check_layer_norm<float>(rms(7, cols), 0, 1);
  check_layer_norm<float>(rms(290, 8), 0);
}

TEST_CASE("layer norm kernels: a residual is added first, and another gradient last, on every path") {
  for (const std::int64_t cols : {1, 7, 8, 264, 777, 1032, 4104})
    for (const bool centred : {true, false}) {
      Inputs in(3, cols);
      in.centred = centred;
      check_both(in.with_residual());
    }
  check_both(Inputs(3, 64).with_residual(), 1);
  check_both(Inputs(1, 16392).with_residual());
  check_layer_norm<float>(Inputs(7, 264).with_residual(), 0, 1);
}

TEST_CASE("layer norm kernels: each gradient can be computed alone") {
  for (const std::int64_t cols : {16, 33, 264, 1032, 1033})
    for (const int asked : {1, 2, 4}) {
      CAPTURE(cols, asked);
      const Inputs in(9, cols);
      const Wanted want(in);
      const Block<float> x(in.x), dy(in.dy), weight(in.weight), mean(want.mean), inv_std(want.inv_std);
      const Block<float> dx(in.x.size()), dweight(in.weight.size()), dbias(in.weight.size());
      LayerNormBackwardArgs s{.rows = in.rows,
                              .cols = in.cols,
                              .dy = dy.data(),
                              .x = x.data(),
                              .mean = mean.data(),
                              .inv_std = inv_std.data(),
                              .weight = weight.data()};
      if (asked & 1) s.dx = dx.data();
      if (asked & 2) s.dweight = dweight.data();
      if (asked & 4) s.dbias = dbias.data();
      gpu::launch_layer_norm_backward<float>({}, s);
      if (asked & 1) check_close("dx", dx, want.dx, want.dx_error);
      if (asked & 2) check_close("dweight", dweight, want.dweight, want.dweight_error);
      if (asked & 4) check_close("dbias", dbias, want.dbias, want.dbias_error);
    }
}

TEST_CASE("layer norm kernels: empty tensors launch nothing, and their gradients are zero") {
  cuda_emulator::take_launches();
  gpu::launch_layer_norm<float>({}, {.rows = 0, .cols = 8});
  gpu::launch_layer_norm<float>({}, {.rows = 8, .cols = 0});
  CHECK(cuda_emulator::take_launches().empty());
  const Block<float> dweight(Values(8, 77)), dbias(Values(8, 77));
  gpu::launch_layer_norm_backward<float>(
      {}, {.rows = 0, .cols = 8, .dweight = dweight.data(), .dbias = dbias.data()});
  for (std::size_t i = 0; i < 8; ++i) CHECK((dweight[i] == 0 && dbias[i] == 0));
}

TEST_CASE("layer norm kernels: row length and alignment choose the kernel") {
  const auto kernels = [](std::int64_t cols, std::size_t offset) {
    const Inputs in(1, cols);
    const Block<float> x(in.x, offset), y(in.x.size(), offset), mean(1), inv_std(1), sums(in.weight.size());
    LayerNormBackwardArgs s{.rows = 1,
                            .cols = cols,
                            .dy = x.data(),
                            .x = x.data(),
                            .mean = mean.data(),
                            .inv_std = inv_std.data()};
    s.dx = y.data(), s.dweight = sums.data();
    return kernels_of([&] {
      gpu::launch_layer_norm<float>({}, {.rows = 1,
                                         .cols = cols,
                                         .x = x.data(),
                                         .eps = 1e-5,
                                         .y = y.data(),
                                         .mean = mean.data(),
                                         .inv_std = inv_std.data()});
      gpu::launch_layer_norm_backward<float>({}, s);
    });
  };
  const auto check = [&](std::int64_t cols, std::size_t offset, const char* forward, const char* backward) {
    const std::string names = kernels(cols, offset);
    CHECK_THAT(names, ContainsSubstring(std::string("layer_norm_") + forward) &&
                          ContainsSubstring(std::string("layer_norm_backward_") + backward) &&
                          ContainsSubstring("add_row_parts"));
  };
  check(256, 0, "rowsIfLi32ELi8ELi4E", "rowsIfLi32ELi8ELi4E");
  check(768, 0, "rowsIfLi32ELi32ELi4E", "rowsIfLi128ELi8ELi4E");
  check(2048, 0, "rowsIfLi128ELi16ELi4E", "rowsIfLi256ELi8ELi4E");
  check(4096, 0, "rowsIfLi256ELi16ELi4E", "rowsIfLi256ELi16ELi4E");
  check(8192, 0, "rowsIfLi512ELi16ELi4E", "rowsIfLi512ELi16ELi4E");
  check(16384, 0, "rowsIfLi1024ELi16ELi4E", "streamedIfLi4E");
  check(16388, 0, "streamedIfLi4E", "streamedIfLi4E");
  check(16388, 1, "streamedIfLi1E", "streamedIfLi1E");
  check(1024, 1, "rowsIfLi128ELi8ELi1E", "rowsIfLi128ELi8ELi1E");
  check(1023, 0, "rowsIfLi128ELi8ELi1E", "rowsIfLi128ELi8ELi1E");
}
