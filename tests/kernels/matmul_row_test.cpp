// Products with one row or one column, beside sums in f64.
#include <cmath>
#include <random>
#include <vector>

#include "tapestry/core/half.h"
#include "tapestry/core/threads.h"
#include "tapestry/kernels/cpu/matmul.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::kernels;

namespace {

std::mt19937 random_bits(3);
std::vector<float> numbers(std::int64_t n) {
  std::vector<float> v(static_cast<std::size_t>(n));
  std::normal_distribution<float> normal(0.5f);
  for (float& x : v) x = normal(random_bits);
  return v;
}
constexpr float kGap = 1e30f;  // marks memory that must be neither read nor written

// The largest error of c = a b, or c += a b, relative to the sum of magnitudes.
double error_of(std::int64_t m, std::int64_t n, std::int64_t k, bool a_plain, bool b_plain, bool accumulate) {
  const MatrixStrides as = a_plain ? MatrixStrides{k + 1, 1} : MatrixStrides{1, m + 2},
                      bs = b_plain ? MatrixStrides{n + 3, 1} : MatrixStrides{1, k + 1};
  std::vector<float> a(static_cast<std::size_t>((m + 2) * (k + 2)), kGap),
      b(static_cast<std::size_t>((n + 3) * (k + 2)), kGap);
  const std::vector<float> x = numbers(m * k), y = numbers(k * n), before = numbers(m * n);
  const auto at = [](const MatrixStrides& s, std::int64_t i, std::int64_t j) {
    return static_cast<std::size_t>(i * s.row + j * s.col);
  };
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t p = 0; p < k; ++p) a[at(as, i, p)] = x[static_cast<std::size_t>(i * k + p)];
  for (std::int64_t p = 0; p < k; ++p)
    for (std::int64_t j = 0; j < n; ++j) b[at(bs, p, j)] = y[static_cast<std::size_t>(p * n + j)];
  std::vector<float> c = before;
  c.push_back(kGap);
  GemmArgs g;
  g.m = m, g.n = n, g.k = k;
  g.a = a.data(), g.a_strides = as, g.b = b.data(), g.b_strides = bs;
  g.c = c.data(), g.c_row = n, g.accumulate = accumulate;
  REQUIRE(cpu::multiply_row(g));
  CHECK(c.back() == kGap);
  double worst = 0;
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < n; ++j) {
      const auto to = static_cast<std::size_t>(i * n + j);
      double sum = accumulate ? static_cast<double>(before[to]) : 0, size = std::fabs(sum) + 1e-30;
      for (std::int64_t p = 0; p < k; ++p) {
        const double term = static_cast<double>(x[static_cast<std::size_t>(i * k + p)]) *
                            static_cast<double>(y[static_cast<std::size_t>(p * n + j)]);
        sum += term;
        size += std::fabs(term);
      }
      worst = std::max(worst, std::fabs(static_cast<double>(c[to]) - sum) / size);
    }
  return worst;
}

}  // namespace

TEST_CASE("products with one row or column agree with sums in f64") {
  for (const std::int64_t n : {1, 3, 4, 17, 64, 1030})
    for (const std::int64_t k : {1, 2, 15, 16, 37, 300})
      for (const bool a_plain : {true, false})
        for (const bool b_plain : {true, false})
          for (const bool accumulate : {true, false}) {
            CAPTURE(n, k, a_plain, b_plain, accumulate);
            CHECK(error_of(1, n, k, a_plain, b_plain, accumulate) < 2e-6);
            CHECK(error_of(n, 1, k, a_plain, b_plain, accumulate) < 2e-6);
          }
  GemmArgs square;
  square.m = square.n = square.k = 2;
  CHECK_FALSE(cpu::multiply_row(square));
}

TEST_CASE("rows times 16-bit matrices are products of f32") {
  const auto check = []<class T>(T) {
    for (const std::int64_t n : {1, 5, 1500})
      for (const std::int64_t k : {1, 6, 1100})
        for (const bool plain : {true, false}) {
          CAPTURE(n, k, plain);
          const std::vector<float> a = numbers(k), values = numbers(n * k);
          std::vector<T> b;
          for (const float v : values) b.push_back(T(v));
          std::vector<float> c(static_cast<std::size_t>(n), 1.0f);
          cpu::add_row_product(a.data(), b.data(), plain ? MatrixStrides{n, 1} : MatrixStrides{1, k}, k,
                               c.data(), n);
          double worst = 0;
          for (std::int64_t j = 0; j < n; ++j) {
            double sum = 1, size = 1;
            for (std::int64_t p = 0; p < k; ++p) {
              const double term = static_cast<double>(a[static_cast<std::size_t>(p)]) *
                                  static_cast<double>(static_cast<float>(
                                      b[static_cast<std::size_t>(plain ? p * n + j : j * k + p)]));
              sum += term;
              size += std::fabs(term);
            }
            worst =
                std::max(worst, std::fabs(static_cast<double>(c[static_cast<std::size_t>(j)]) - sum) / size);
          }
          CHECK(worst < 2e-6);
        }
  };
  check(Half());
  check(BFloat16());
}

TEST_CASE("products with one row do not depend on the number of threads") {
  for (const bool plain : {true, false}) {
    const std::int64_t n = 2000, k = 300;
    const std::vector<float> a = numbers(k), b = numbers(n * k);
    std::vector<std::vector<float>> results;
    for (const int threads : {1, 2, 3}) {
      const ThreadShare share(threads);
      std::vector<float> c(static_cast<std::size_t>(n));
      cpu::add_row_product(a.data(), b.data(), plain ? MatrixStrides{n, 1} : MatrixStrides{1, k}, k, c.data(),
                           n);
      results.push_back(c);
    }
    CHECK((results[0] == results[1] && results[0] == results[2]));
  }
}
