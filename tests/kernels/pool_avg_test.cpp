#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tapestry/core/threads.h"
#include "tapestry/kernels/ops/pool.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::kernels;
using tapestry::kernels::adaptive_avg_pool2d;

TEST_CASE("adaptive_avg_pool2d: windows of whole rows, wide and narrow ones give the means of f64") {
  std::mt19937 random_bits(5);
  std::uniform_real_distribution<float> around_one(0.5f, 1.5f);  // a mean far from 0
  const int before = get_num_threads();
  struct Sizes {
    std::int64_t h, w, p, q;
  };
  // One window of all rows, bands of whole rows, columns wider and narrower than the 16 partial sums of a
  // row.
  for (const auto& [h, w, p, q] : {Sizes{37, 41, 1, 1},
                                   {37, 41, 4, 1},
                                   {9, 53, 1, 3},
                                   {9, 47, 2, 3},
                                   {5, 15, 5, 1},
                                   {7, 16, 7, 1},
                                   {3, 17, 3, 1},
                                   {1, 1, 1, 1},
                                   {4, 3, 6, 5}}) {
    Pool2dShape s;
    s.n = 3, s.c = 5, s.h = h, s.w = w, s.p = p, s.q = q;
    std::vector<float> x(static_cast<std::size_t>(s.n * s.c * h * w));
    for (float& v : x) v = around_one(random_bits);
    const auto run = [&](int threads) {
      set_num_threads(threads);
      std::vector<float> y(static_cast<std::size_t>(s.n * s.c * s.p * s.q), -1);
      adaptive_avg_pool2d(kCPU, DType::f32, {.shape = s, .x = x.data(), .y = y.data()});
      return y;
    };
    const std::vector<float> y = run(1);
    CHECK(run(3) == y);
    for (std::int64_t plane = 0; plane < s.n * s.c; ++plane)
      for (std::int64_t i = 0; i < p; ++i)
        for (std::int64_t j = 0; j < q; ++j) {
          double sum = 0, count = 0;
          for (std::int64_t r = i * h / p; r < ((i + 1) * h + p - 1) / p; ++r)
            for (std::int64_t t = j * w / q; t < ((j + 1) * w + q - 1) / q; ++t)
              sum += x[static_cast<std::size_t>((plane * h + r) * w + t)], ++count;
          const double got = y[static_cast<std::size_t>((plane * p + i) * q + j)];
          CAPTURE(h, w, p, q, plane, i, j);
          // 16 partial sums of each row, then their sum, the sum of the rows, and the product with 1 / count.
          CHECK(std::abs(got - sum / count) <=
                (count / 16 + 40) * std::numeric_limits<float>::epsilon() * sum / count);
        }
  }
  set_num_threads(before);
}

TEST_CASE("adaptive_avg_pool2d: NaN in any place of a window reaches the mean") {
  Pool2dShape s;
  s.n = s.c = s.p = s.q = 1, s.h = 3, s.w = 13;
  for (std::size_t at : {0u, 15u, 16u, 31u, 32u, 38u}) {
    std::vector<float> x(39, 1.0f);
    x[at] = std::numeric_limits<float>::quiet_NaN();
    float y = 0;
    adaptive_avg_pool2d(kCPU, DType::f32, {.shape = s, .x = x.data(), .y = &y});
    CHECK(std::isnan(y));
  }
}
