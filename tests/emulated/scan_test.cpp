// Scan kernels against plain loops in f64, where a row is one piece, several tiles, or several pieces.
#include "tapestry/kernels/cuda/scan.cuh"

#include <cmath>
#include <limits>
#include <vector>

#include "tests/emulated/elementwise.h"
#include "tests/emulated/values.h"

using namespace tapestry;
using namespace tapestry::kernels;
namespace gpu = tapestry::kernels::cuda;
using namespace emulated;

namespace {

struct Case {
  std::int64_t rows, n;
};
const Case kCases[] = {{1, 1}, {40, 3}, {2, 600}, {2, 1024}, {1, 1025}, {1, 8200}};
std::size_t size_of(const Case& c) { return static_cast<std::size_t>(c.rows * c.n); }

}  // namespace

TEST_CASE("scan kernels: sums of both directions and all sizes") {
  in_each_order([] {
    for (const Case& c : kCases)
      for (const bool reverse : {false, true}) {
        CAPTURE(c.rows, c.n, reverse);
        const Values x = numbers(c.rows * c.n, 1, 8);
        const Block<float> in(x), out(size_of(c));
        gpu::launch_scan<Cumulative<float, float, false>>(
            {}, ScanArgs{c.rows, c.n, reverse, in.data(), out.data()});
        Values want(x.size()), error(x.size());
        for (std::int64_t row = 0; row < c.rows; ++row) {
          double sum = 0, size = 0;
          for (std::int64_t i = 0; i < c.n; ++i) {
            const auto at = static_cast<std::size_t>(row * c.n + (reverse ? c.n - 1 - i : i));
            want[at] = sum += x[at];
            error[at] = roundings(c.n) * (size += std::abs(x[at]));
          }
        }
        check_close("sums", out, want, error);
      }
  });
}

TEST_CASE("scan kernels: integers wrap around as on the CPU") {
  const std::vector<std::int64_t> big(3000, INT64_MAX / 3);
  const Block<std::int64_t> in(big), want(big.size()), got(big.size());
  kernels::cumsum(kCPU, DType::i64, {1, 3000, false, in.data(), want.data()});
  gpu::launch_scan<Cumulative<std::int64_t, std::uint64_t, false>>(
      {}, ScanArgs{1, 3000, false, in.data(), got.data()});
  CHECK(std::equal(want.data(), want.data() + 3000, got.data()));
  kernels::cumprod(kCPU, DType::i64, {1, 3000, false, in.data(), want.data()});
  gpu::launch_scan<Cumulative<std::int64_t, std::uint64_t, true>>(
      {}, ScanArgs{1, 3000, false, in.data(), got.data()});
  CHECK(std::equal(want.data(), want.data() + 3000, got.data()));
}

TEST_CASE("scan kernels: cummax gives the CPU's bits, with ties and NaN, and so do its gradients") {
  in_each_order([] {
    for (const Case& c : kCases)
      for (const bool largest : {false, true}) {
        CAPTURE(c.rows, c.n, largest);
        Values x = numbers(c.rows * c.n, 2, 1);
        for (std::size_t i = 0; i < x.size(); ++i)
          if (i % 4001 == 4000) x[i] = kNaN;
        const Block<float> in(x), want(x.size()), got(x.size());
        const Block<std::int64_t> want_at(x.size()), got_at(x.size());
        const CummaxArgs cpu{c.rows, c.n, largest, in.data(), want.data(), want_at.data()},
            device{c.rows, c.n, largest, in.data(), got.data(), got_at.data()};
        kernels::cummax(kCPU, DType::f32, cpu);
        gpu::launch_scan<CumulativeExtreme<float>>({}, device);
        CHECK(std::equal(want_at.data(), want_at.data() + x.size(), got_at.data()));
        check_close("cummax", got, Values(want.data(), want.data() + x.size()), Values(x.size()));

        const Block<float> dy(Values(x.size(), 1.0));  // sums of ones are exact
        kernels::cummax_backward(kCPU, DType::f32, {c.rows, c.n, want_at.data(), dy.data(), want.data()});
        gpu::launch_scan<CummaxBackward<float, float>>(
            {}, CummaxBackwardArgs{c.rows, c.n, want_at.data(), dy.data(), got.data()});
        CHECK(std::equal(want.data(), want.data() + x.size(), got.data()));
      }
  });
}

TEST_CASE("scan kernels: products and their gradients, with zeros, in rows of several pieces") {
  for (const Case& c : {Case{3, 5}, {1, 9000}}) {
    CAPTURE(c.rows, c.n);
    Values x = numbers(c.rows * c.n, 3, 0x1p-10);
    for (double& v : x) v += 1;
    x[x.size() / 2] = 0;
    const Block<float> in(x), dy(numbers(c.rows * c.n, 4, 1)), y(x.size()), dx(x.size());
    const Block<double> in64(x), dy64(numbers(c.rows * c.n, 4, 1)), y64(x.size()), dx64(x.size());
    kernels::cumprod(kCPU, DType::f64, {c.rows, c.n, false, in64.data(), y64.data()});
    kernels::cumprod_backward(kCPU, DType::f64,
                              {c.rows, c.n, in64.data(), y64.data(), dy64.data(), dx64.data()});
    gpu::launch_scan<Cumulative<float, float, true>>({}, ScanArgs{c.rows, c.n, false, in.data(), y.data()});
    gpu::launch_scan<CumprodBackward<float, float>>(
        {}, CumprodBackwardArgs{c.rows, c.n, in.data(), y.data(), dy.data(), dx.data()});
    // A product of n factors has n roundings. A gradient is a sum of up to n such products with |dy| <= 1.
    const double n = static_cast<double>(c.n);
    Values want(y64.data(), y64.data() + x.size()), error = magnitudes(want);
    for (double& e : error) e *= 2 * n;
    check_close("products", y, want, error);
    const Values gradients(dx64.data(), dx64.data() + x.size());
    check_close("gradients", dx, gradients, Values(x.size(), 16 * n * n));
  }
}

TEST_CASE(
    "scan kernels: logarithms of sums and their gradients, with infinities, in rows of several pieces") {
  in_each_order([] {
    for (const Case& c : {Case{40, 3}, {1, 8200}}) {
      CAPTURE(c.rows, c.n);
      Values x = numbers(c.rows * c.n, 5, 60);
      for (std::size_t i = 0; i < x.size(); i += 7) x[i] = -std::numeric_limits<double>::infinity();
      const Block<float> in(x), dy(numbers(c.rows * c.n, 6, 1)), y(x.size()), dx(x.size());
      const Block<double> in64(x), dy64(numbers(c.rows * c.n, 6, 1)), y64(x.size()), dx64(x.size());
      kernels::logcumsumexp(kCPU, DType::f64, {c.rows, c.n, false, in64.data(), y64.data()});
      kernels::logcumsumexp_backward(kCPU, DType::f64,
                                     {c.rows, c.n, in64.data(), y64.data(), dy64.data(), dx64.data()});
      gpu::launch_scan<LogCumulative<float, float>>({}, ScanArgs{c.rows, c.n, false, in.data(), y.data()});
      gpu::launch_scan<LogCumulativeBackward<float, float>>(
          {}, CumprodBackwardArgs{c.rows, c.n, in.data(), y.data(), dy.data(), dx.data()});
      const double n = static_cast<double>(c.n);
      std::int64_t bad = 0;
      for (std::size_t i = 0; i < x.size(); ++i) {
        const double got = static_cast<double>(y.data()[i]), want = y64.data()[i];
        bad += !(got == want || std::abs(got - want) <= 1e-5 * (1 + std::abs(want)));
        // An exponent is a difference of numbers up to 60, whose roundings are 60 eps; up to n terms are
        // added.
        bad += !(std::abs(static_cast<double>(dx.data()[i]) - dx64.data()[i]) <= 1e-4 * std::sqrt(n));
      }
      CHECK(bad == 0);
    }
  });
}
