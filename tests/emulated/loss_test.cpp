// Tests that loss kernels match the CPU's kernels in f64 on every launch path, for ragged sizes and extremes.
#include "tapestry/kernels/cuda/loss.cuh"

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "tests/emulated/values.h"

using namespace tapestry;
using namespace tapestry::kernels;
namespace gpu = tapestry::kernels::cuda;
using namespace emulated;

namespace {

struct Shape3 {
  std::int64_t outer, n, inner;
  std::int64_t rows() const { return outer * inner; }
  std::int64_t count() const { return outer * n * inner; }
};
/// The options of a loss.
struct LossOptions {
  bool weighted = false, probabilities = false;
  double smoothing = 0;
  bool each_row = false;
  std::size_t offset = 0, out_offset = 0;  // misalignment of inputs and output, in elements
  double scale = 8;                        // scale of the logits
};

/// Inputs of a loss, which are exact in every dtype.
struct Inputs {
  Shape3 shape;
  LossOptions options;
  Values x, probabilities, weight, grad, divisor{3};
  std::vector<std::int64_t> target;
  std::int64_t first_bad = kNoBadIndex;

  Inputs(const Shape3& s, const LossOptions& a)
      : shape(s),
        options(a),
        x(numbers(s.count(), 1, a.scale)),
        probabilities(magnitudes(numbers(s.count(), 2, 1))),
        weight(magnitudes(numbers(s.n, 3, 2))),
        grad(numbers(a.each_row ? s.rows() : 1, 4, 2)) {
    for (std::int64_t i = 0; i < s.rows(); ++i) {
      const std::int64_t ignored = -7;
      target.push_back(i % 7 == 3 ? ignored : i % 11 == 5 ? s.n + i : i % 13 == 9 ? -1 : i * 31 % s.n);
      if (target.back() != ignored && (target.back() < 0 || target.back() >= s.n))
        first_bad = std::min(first_bad, i);
    }
  }
  std::size_t at(std::int64_t row, std::int64_t c) const {
    const std::int64_t outer = row / shape.inner, i = row % shape.inner;
    return static_cast<std::size_t>((outer * shape.n + c) * shape.inner + i);
  }
  template <class T, class W>
  ClassRowsArgs loss(const T* x_data, const T* t, const W* w, W* stats) const {
    return {.outer = shape.outer,
            .classes = shape.n,
            .inner = shape.inner,
            .x = x_data,
            .target = options.probabilities ? nullptr : target.data(),
            .probabilities = options.probabilities ? t : nullptr,
            .weight = options.weighted ? w : nullptr,
            .ignore_index = -7,
            .smoothing = options.smoothing,
            .stats = stats};
  }
};

/// The inputs in the memory of an emulated GPU, misaligned as the options say.
template <class T>
struct OnGpu {
  Block<T> x, probabilities, out;
  Block<float> weight, grad, divisor, stats, losses, weights;
  std::int64_t first_bad = kNoBadIndex;
  ClassRowsArgs loss;
  LossGrad loss_grad;

  ClassLossArgs forward() {
    return {.rows = loss, .losses = losses.data(), .weights = weights.data(), .first_bad = &first_bad};
  }
  ClassLossBackwardArgs backward() const { return {.rows = loss, .grad = loss_grad, .dx = out.data()}; }

  explicit OnGpu(const Inputs& in)
      : x(in.x, in.options.offset),
        probabilities(in.probabilities, in.options.offset),
        out(Values(in.x.size(), 77), in.options.out_offset),
        weight(in.weight),
        grad(in.grad),
        divisor(in.divisor),
        stats(2 * static_cast<std::size_t>(in.shape.rows())),
        losses(Values(static_cast<std::size_t>(in.shape.rows()), 77)),
        weights(Values(static_cast<std::size_t>(in.shape.rows()), 77)),
        loss(in.loss(x.data(), probabilities.data(), weight.data(), stats.data())),
        loss_grad{grad.data(), in.options.each_row, in.options.each_row ? nullptr : divisor.data()} {}
};

/// The CPU's results in f64, and bounds of the errors of f32 kernels in unit roundoffs.
struct Wanted {
  Values stats, losses, weights, dx, dtarget;
  Values stats_error, loss_error, dx_error, dtarget_error;
  std::int64_t first_bad = kNoBadIndex;

  explicit Wanted(const Inputs& in)
      : stats(2 * in.target.size()),
        losses(in.target.size()),
        weights(in.target.size()),
        dx(in.x.size()),
        dtarget(in.x.size()),
        stats_error(2 * in.target.size()),
        loss_error(in.target.size()),
        dx_error(in.x.size()),
        dtarget_error(in.x.size()) {
    const ClassRowsArgs a = in.loss(in.x.data(), in.probabilities.data(), in.weight.data(), stats.data());
    const LossGrad g{in.grad.data(), in.options.each_row, in.options.each_row ? nullptr : in.divisor.data()};
    kernels::cross_entropy(
        kCPU, DType::f64,
        {.rows = a, .losses = losses.data(), .weights = weights.data(), .first_bad = &first_bad});
    cross_entropy_backward(kCPU, DType::f64, {.rows = a, .grad = g, .dx = dx.data()});
    cross_entropy_target_backward(kCPU, DType::f64, {.rows = a, .grad = g, .dx = dtarget.data()});
    double largest = 0;
    for (const double v : in.x)
      if (std::isfinite(v)) largest = std::max(largest, std::abs(v));
    // The relative error of a sum of exponentials: x - max is rounded before exp.
    const double sum_error = roundings(in.shape.n) + 4 * std::min(largest, 256.0);
    for (std::int64_t row = 0; row < in.shape.rows(); ++row) {
      const auto r = static_cast<std::size_t>(row);
      const double max = stats[2 * r], log_sum = stats[2 * r + 1];
      const double grad = std::abs(in.grad[in.options.each_row ? r : 0] / (in.options.each_row ? 1 : 3));
      stats_error[2 * r + 1] = sum_error + 4 * std::abs(log_sum);
      double q_sum = 0;
      const auto q = [&](std::int64_t c) {
        const double w = in.options.weighted ? in.weight[static_cast<std::size_t>(c)] : 1;
        const double t = in.options.probabilities ? in.probabilities[in.at(row, c)] : in.target[r] == c;
        return w * ((1 - in.options.smoothing) * t + in.options.smoothing / static_cast<double>(in.shape.n));
      };
      for (std::int64_t c = 0; c < in.shape.n; ++c) q_sum += q(c);
      loss_error[r] = sum_error * q_sum + roundings(in.shape.n) * (q_sum * std::abs(log_sum) + losses[r]);
      for (std::int64_t c = 0; c < in.shape.n; ++c) {
        const std::size_t i = in.at(row, c);
        const double p = std::exp(in.x[i] - max - log_sum);
        const double p_error = sum_error + 4 * (std::abs(log_sum) + std::abs(in.x[i] - max));
        dx_error[i] = grad * ((p > 0 ? p_error * p * q_sum : 0) + 8 * q(c));
        const double w = in.options.weighted ? in.weight[static_cast<std::size_t>(c)] : 1;
        dtarget_error[i] = grad * w * (sum_error + 8 * (std::abs(log_sum) + std::abs(in.x[i] - max)));
      }
    }
  }
};

template <class T>
void check_cross_entropy(const Inputs& in) {
  CAPTURE(in.shape.outer, in.shape.n, in.shape.inner, in.options.weighted, in.options.probabilities,
          in.options.smoothing, in.options.each_row, in.options.offset, in.options.out_offset, sizeof(T));
  const Wanted want(in);
  in_each_order([&] {
    OnGpu<T> on(in);
    gpu::launch_cross_entropy<T>({}, on.forward());
    CHECK(on.first_bad == want.first_bad);
    check_close("stats", on.stats, want.stats, want.stats_error);
    check_close("losses", on.losses, want.losses, want.loss_error);
    check_close("weights", on.weights, want.weights, Values(want.weights.size()));
    gpu::launch_cross_entropy_backward<T>({}, on.backward());
    check_close("dx", on.out, want.dx, want.dx_error);
    const std::vector<T> apart(on.out.data(), on.out.data() + in.x.size());
    OnGpu<T> over(in);  // the gradient may be written over the logits
    gpu::launch_cross_entropy<T>({}, over.forward());
    ClassLossBackwardArgs in_place = over.backward();
    in_place.dx = over.x.data();
    gpu::launch_cross_entropy_backward<T>({}, in_place);
    if (!apart.empty()) CHECK(std::memcmp(over.x.data(), apart.data(), apart.size() * sizeof(T)) == 0);
    gpu::launch_cross_entropy_target_backward<T>({}, on.backward());
    check_close("dtarget", on.out, want.dtarget, want.dtarget_error);
  });
}
void check_cross_entropy(const Shape3& shape, const LossOptions& options) {
  const Inputs in(shape, options);
  for_float_dtypes([&]<class T>() { check_cross_entropy<T>(in); });
}

template <class T>
void check_nll(const Inputs& in) {
  CAPTURE(in.shape.outer, in.shape.n, in.shape.inner, in.options.offset, sizeof(T));
  const std::size_t rows = in.target.size();
  Values losses(rows), weights(rows), dx(in.x.size()), loss_error(rows), dx_error(in.x.size());
  std::int64_t first_bad = kNoBadIndex;
  const ClassRowsArgs a = in.loss<double, double>(in.x.data(), nullptr, in.weight.data(), nullptr);
  const LossGrad g{in.grad.data(), in.options.each_row, in.options.each_row ? nullptr : in.divisor.data()};
  kernels::nll_loss(kCPU, DType::f64,
                    {.rows = a, .losses = losses.data(), .weights = weights.data(), .first_bad = &first_bad});
  nll_loss_backward(kCPU, DType::f64, {.rows = a, .grad = g, .dx = dx.data()});
  for (std::size_t i = 0; i < rows; ++i) loss_error[i] = std::abs(losses[i]);
  for (std::size_t i = 0; i < dx.size(); ++i) dx_error[i] = 2 * std::abs(dx[i]);
  in_each_order([&] {
    OnGpu<T> on(in);
    gpu::launch_nll_loss<T>({}, on.forward());
    CHECK(on.first_bad == first_bad);
    check_close("losses", on.losses, losses, loss_error);
    check_close("weights", on.weights, weights, Values(rows));
    gpu::launch_nll_loss_backward<T>({}, on.backward());
    check_close("dx", on.out, dx, dx_error);
  });
}
void check_nll(const Shape3& shape, const LossOptions& options) {
  const Inputs in(shape, options);
  for_float_dtypes([&]<class T>() { check_nll<T>(in); });
}

}  // namespace

TEST_CASE(
    "cross-entropy kernels: weights, probabilities and smoothing give the CPU's values in every row "
    "mapping") {
  for (const bool weighted : {false, true})
    for (const bool probabilities : {false, true})
      for (const double smoothing : {0.0, 0.1}) {
        check_cross_entropy({5, 10, 1}, {weighted, probabilities, smoothing});
        check_cross_entropy({2, 19, 33}, {weighted, probabilities, smoothing, true});
        check_cross_entropy({5, 333, 1}, {weighted, probabilities, smoothing});
        check_cross_entropy({2, 1037, 1}, {weighted, probabilities, smoothing, weighted});
      }
}

TEST_CASE("cross-entropy kernels: rows of any length give the CPU's values") {
  for (const std::int64_t n : {1, 2, 31, 32, 33, 63, 64, 256, 257, 300, 1024})
    check_cross_entropy({9, n, 1}, {});
  for (const std::int64_t n : {1025, 1032, 8191, 8192, 8200}) check_cross_entropy({4, n, 1}, {true});
  for (const std::int64_t inner : {2, 31, 32, 70})
    for (const std::int64_t n : {1, 3, 8, 40}) check_cross_entropy({2, n, inner}, {true});
}

TEST_CASE("cross-entropy kernels: few long rows are split over several blocks") {
  check_cross_entropy({2, 16385, 1}, {});
  check_cross_entropy({2, 16389, 1}, {.weighted = true, .smoothing = 0.1, .offset = 3, .out_offset = 3});
  check_cross_entropy({1, 16389, 1}, {.probabilities = true});
  check_nll({2, 16389, 1}, {});
}

TEST_CASE("cross-entropy kernels: misaligned arrays give the same values") {
  for (const std::size_t offset : {1, 3, 6})
    for (const std::int64_t n : {77, 1029})
      check_cross_entropy({3, n, 1}, {.probabilities = offset == 3, .offset = offset, .out_offset = offset});
  check_cross_entropy({2, 1032, 1}, {.offset = 1});  // input and output are misaligned differently
  check_cross_entropy({3, 40, 1}, {.offset = 1});
}

TEST_CASE("cross-entropy kernels: infinities, NaN and huge values give the CPU's values") {
  for (const Shape3& shape : {Shape3{9, 40, 1}, Shape3{9, 40, 3}, Shape3{9, 100, 1}, Shape3{9, 1060, 1}})
    for (const double smoothing : {0.0, 0.25}) {
      Inputs in(shape, {.weighted = smoothing != 0, .smoothing = smoothing, .scale = 2});
      for (double& w : in.weight) w += 1;
      in.target.assign(in.target.size(), 2);
      const auto row = [&](std::int64_t o) {
        return &in.x[static_cast<std::size_t>(o * shape.n * shape.inner)];
      };
      const std::int64_t size = shape.n * shape.inner;
      for (std::int64_t k = 0; k < size; ++k) {
        row(1)[k] = -kInfinity;
        if (k / shape.inner != 2 && k % 3) row(2)[k] = -kInfinity;
        row(3)[k] = k / shape.inner == 2 ? -kInfinity : row(3)[k];
        row(6)[k] *= 64;
        row(7)[k] = 1e30;
        row(8)[k] -= 0x1p9;
      }
      row(4)[size - 1] = kInfinity;
      row(5)[size / 2] = kNaN;
      for (double& x : in.x) x = static_cast<double>(static_cast<float>(BFloat16(static_cast<float>(x))));
      for_float_dtypes([&]<class T>() { check_cross_entropy<T>(in); });
      // Ignored rows have gradient 0, whatever they contain.
      in.target.assign(in.target.size(), -7);
      check_cross_entropy<float>(in);
    }
}

TEST_CASE("cross-entropy kernels: empty tensors launch nothing") {
  for (const Shape3& shape : {Shape3{0, 3, 1}, Shape3{3, 3, 0}}) {
    const Inputs in(shape, {});
    cuda_emulator::take_launches();
    check_cross_entropy<float>(in);
    check_nll<float>(in);
    CHECK(cuda_emulator::take_launches().empty());
  }
}

TEST_CASE("cross-entropy kernels: shape and alignment choose the row mapping") {
  const auto kernel = [](const Shape3& shape, const LossOptions& options, bool forward = false) {
    const Inputs in(shape, options);
    OnGpu<float> on(in);
    return kernels_of([&] {
      if (forward) gpu::launch_cross_entropy<float>({}, on.forward());
      else gpu::launch_cross_entropy_backward<float>({}, on.backward());
    });
  };
  CHECK_THAT(kernel({3, 1024, 1}, {}), ContainsSubstring("WarpPerRow"));
  CHECK_THAT(kernel({3, 1025, 1}, {}), ContainsSubstring("BlockPerRow"));
  CHECK_THAT(kernel({3, 1025, 1}, {.offset = 1}), ContainsSubstring("WarpPerRow"));
  CHECK_THAT(kernel({3, 1025, 1}, {.offset = 1, .out_offset = 1}), ContainsSubstring("BlockPerRow"));
  CHECK_THAT(kernel({3, 9, 2}, {}), ContainsSubstring("StridedRows"));
  CHECK_THAT(kernel({1, 16384, 1}, {}), ContainsSubstring("BlockPerRow"));
  CHECK_THAT(kernel({1, 16385, 1}, {}), ContainsSubstring("SplitRow"));
  CHECK_THAT(kernel({1, 16385, 1}, {}), !ContainsSubstring("cross_entropy_q_parts"));
  CHECK_THAT(kernel({1, 16385, 1}, {.smoothing = 0.1}),
             ContainsSubstring("cross_entropy_q_parts") && ContainsSubstring("SplitRow"));
  CHECK_THAT(kernel({1, 16384, 1}, {}, true), ContainsSubstring("cross_entropy_rowsINS1_11BlockPerRow"));
  CHECK_THAT(kernel({1, 16385, 1}, {}, true),
             ContainsSubstring("cross_entropy_parts") && ContainsSubstring("cross_entropy_join"));
}

TEST_CASE("NLL kernels: every row mapping gives the CPU's values") {
  for (const bool weighted : {false, true}) {
    for (const std::int64_t n : {1, 10, 33, 300}) check_nll({70, n, 1}, {weighted});
    check_nll({3, 1030, 1}, {.weighted = weighted, .each_row = true, .offset = 1, .out_offset = 1});
    check_nll({3, 19, 33}, {.weighted = weighted, .each_row = true});
  }
}

TEST_CASE(
    "the mean of the losses: in the launch of the losses or its own, it is the quotient of their sums") {
  const auto check = [](const Shape3& shape, const LossOptions& options, bool nll) {
    const Inputs in(shape, options);
    CAPTURE(shape.outer, shape.n, shape.inner, nll);
    in_each_order([&] {
      OnGpu<float> on(in);
      const Block<float> mean(1), total(1);
      ClassLossArgs args = on.forward();
      args.mean = mean.data(), args.total = total.data();
      for (int i = 0; i < 2; ++i)  // the second launch finds the counters as the first did
        if (nll) gpu::launch_nll_loss<float>({}, args);
        else gpu::launch_cross_entropy<float>({}, args);
      double loss = 0, weight = 0, size = 0;
      for (std::size_t i = 0; i < on.losses.size(); ++i) {
        loss += static_cast<double>(on.losses[i]);
        weight += static_cast<double>(on.weights[i]);
        size += std::abs(static_cast<double>(on.losses[i]));
      }
      const double terms = roundings(shape.rows());
      check_close("total", total, {weight}, {terms * weight});
      check_close("mean", mean, {loss / weight}, {terms * (size / weight + std::abs(loss / weight))});
    });
  };
  // WarpPerRow, BlockPerRow, StridedRows and SplitRow; then the largest number of rows in one launch, and
  // more.
  for (const Shape3& shape : {Shape3{1, 5, 1}, Shape3{9, 10, 1}, Shape3{3, 1028, 1}, Shape3{2, 5, 33},
                              Shape3{1, 16388, 1}, Shape3{2, 16388, 1}, Shape3{0, 5, 1}})
    check(shape, {.weighted = true, .smoothing = 0.1}, false);
  for (const std::int64_t rows : {1, 130, 4096, 4097}) check({rows, 3, 1}, {.weighted = true}, true);
}

TEST_CASE("squared error kernels: sums of any length and alignment give the CPU's values") {
  const auto check = [](auto type, std::int64_t n, std::size_t offset) {
    using T = decltype(type);
    CAPTURE(n, offset, sizeof(T));
    const Values x = numbers(n, 1, 4), t = numbers(n, 2, 4);
    double want = 0;
    sum_squared_error(kCPU, DType::f64,
                      {.n = n, .x = x.data(), .target = t.data(), .out = &want, .divisor = 7});
    in_each_order([&] {
      const Block<T> a(x, offset), b(t), out(1);
      gpu::launch_sum_squared_error<T>(
          {}, {.n = n, .x = a.data(), .target = b.data(), .out = out.data(), .divisor = 7});
      check_close("sum", out, {want}, {roundings(n) * want});
    });
  };
  for (const std::int64_t n : {0, 1, 7, 300, 4100, 9001})
    for (const std::size_t offset : {0, 1}) {
      check(float(), n, offset);
      check(BFloat16(), n, offset);
    }
}

TEST_CASE("cross-entropy kernels: f16 gives the CPU's values in every row mapping") {
  for (const bool probabilities : {false, true}) {
    const LossOptions options{.weighted = true, .probabilities = probabilities};
    for (const Shape3& shape :
         {Shape3{5, 10, 1}, Shape3{2, 19, 33}, Shape3{5, 333, 1}, Shape3{2, 1037, 1}, Shape3{1, 16389, 1}})
      check_cross_entropy<Half>(Inputs(shape, options));
    LossOptions apart = options;
    apart.offset = 1;  // input and output are misaligned differently
    check_cross_entropy<Half>(Inputs({2, 1032, 1}, apart));
  }
  for (const Shape3& shape : {Shape3{5, 10, 1}, Shape3{2, 19, 33}, Shape3{2, 1037, 1}, Shape3{1, 16389, 1}})
    check_nll<Half>(Inputs(shape, {}));
}
