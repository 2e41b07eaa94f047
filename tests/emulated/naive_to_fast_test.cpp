// The kernels of docs/tutorials/from-naive-to-fast.md against a reference in f64.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tapestry/docs/tutorials/from-naive-to-fast/conv.cuh"
#include "tapestry/docs/tutorials/from-naive-to-fast/linear.cuh"
#include "tapestry/docs/tutorials/from-naive-to-fast/softmax.cuh"
#include "tests/emulated/memory.h"
#include "tests/emulated/values.h"
#include "tests/support/catch.h"

using namespace emulated;
using namespace naive_to_fast;
using tapestry::BFloat16;

namespace {

unsigned up(int n, int tile) { return static_cast<unsigned>((n + tile - 1) / tile); }
std::size_t count(int a, int b = 1, int c = 1) { return static_cast<std::size_t>(a) * b * c; }

// ---- softmax ----

using Softmax = void (*)(const float* x, float* y, int rows, int columns);
const Softmax kSoftmax[] = {[](const float* x, float* y, int rows, int columns) {
                              launch(&softmax_thread_per_row<>, up(rows, 128), 128, 0, nullptr, x, y, rows,
                                     columns);
                            },
                            [](const float* x, float* y, int rows, int columns) {
                              launch(&softmax_block_per_row<>, up(rows, 1), 256, 0, nullptr, x, y, columns);
                            },
                            [](const float* x, float* y, int rows, int columns) {
                              launch(&softmax_online<>, up(rows, 1), 256, 0, nullptr, x, y, columns);
                            },
                            [](const float* x, float* y, int rows, int columns) {
                              launch(&softmax_in_registers<2>, up(rows, 1), 128, 0, nullptr, x, y, columns);
                            }};

/// The error of one element, relative to it: the sum, two exponentials and a quotient. The exponent x - max
/// is rounded too, which scales the error of the exponential by |x - max|.
void check_softmax(std::size_t version, const Values& x, int rows, int columns) {
  CAPTURE(version, rows, columns);
  const Block<float> in(x), out(x.size());
  kSoftmax[version](in.data(), out.data(), rows, columns);
  Values want(x.size()), error(x.size());
  for (int r = 0; r < rows; ++r) {
    const auto row = x.begin() + r * columns;
    const double max = *std::max_element(row, row + columns);
    double sum = 0;
    for (int i = 0; i < columns; ++i) sum += std::exp(row[i] - max);
    for (int i = 0; i < columns; ++i) {
      const std::size_t at = count(r, columns) + static_cast<std::size_t>(i);
      want[at] = std::exp(row[i] - max) / sum;
      error[at] = want[at] * (roundings(columns) + 2 * std::min(200.0, max - row[i])) + 1e-30;
    }
  }
  check_close("softmax", out, want, error);
}

// ---- linear ----

struct Problem {
  int m, n, k;
};

/// relu(x w^T + bias) and the bound of its rounding error.
template <class T>
void check_linear(const char* name, Problem p, void (*run)(const Linear<T>&)) {
  CAPTURE(name, p.m, p.n, p.k);
  const Values x = numbers(p.m * p.k, 1, 1), w = numbers(p.n * p.k, 2, 1), bias = numbers(p.n, 3, 1);
  const Block<T> in(x), weight(w), b(bias), y(count(p.m, p.n));
  run({in.data(), weight.data(), b.data(), y.data(), p.m, p.n, p.k});
  Values want(y.size()), error(y.size());
  for (int r = 0; r < p.m; ++r)
    for (int c = 0; c < p.n; ++c) {
      double sum = bias[count(c)], magnitude = std::abs(sum);
      for (int k = 0; k < p.k; ++k) {
        const double product = x[count(r, p.k) + count(k)] * w[count(c, p.k) + count(k)];
        sum += product, magnitude += std::abs(product);
      }
      const std::size_t at = count(r, p.n) + count(c);
      want[at] = std::max(0.0, sum);
      error[at] = magnitude * roundings(p.k);
    }
  check_close(name, y, want, error);
}

// ---- convolution ----

void check_conv(const char* name, Conv p, void (*run)(const Conv&)) {
  CAPTURE(name, p.n, p.h, p.w, p.c, p.k, p.r, p.s, p.padding);
  const Values x = numbers(p.n * p.h * p.w * p.c, 1, 1), weight = numbers(p.k * p.r * p.s * p.c, 2, 1);
  const Block<float> in(x), filters(weight), y(count(p.pixels(), p.k));
  p.x = in.data(), p.weight = filters.data(), p.y = y.data();
  run(p);
  Values want(y.size()), error(y.size());
  std::size_t at = 0;
  for (int n = 0; n < p.n; ++n)
    for (int oh = 0; oh < p.out_h(); ++oh)
      for (int ow = 0; ow < p.out_w(); ++ow)
        for (int k = 0; k < p.k; ++k, ++at) {
          for (int r = 0; r < p.r; ++r)
            for (int s = 0; s < p.s; ++s)
              for (int c = 0; c < p.c; ++c) {
                const int h = oh + r - p.padding, w = ow + s - p.padding;
                if (h < 0 || h >= p.h || w < 0 || w >= p.w) continue;
                const double product = x[count((n * p.h + h) * p.w + w, p.c) + count(c)] *
                                       weight[count((k * p.r + r) * p.s + s, p.c) + count(c)];
                want[at] += product;
                error[at] += std::abs(product);
              }
          error[at] *= roundings(p.r * p.s * p.c);
        }
  check_close(name, y, want, error);
}

void run_naive(const Conv& p) {
  launch(&conv_thread_per_output<>, up(p.pixels() * p.k, 128), 128, 0, nullptr, p);
}
void run_gemm(const Conv& p) {
  launch(&conv_implicit_gemm<>, dim3(up(p.k, 128), up(p.pixels(), 64)), 128, 0, nullptr, p);
}
void run_hoisted(const Conv& p) {
  launch(&conv_hoisted<>, dim3(up(p.k, 128), up(p.pixels(), 64)), 128, 0, nullptr, p);
}

}  // namespace

TEST_CASE("each version of the tutorial's softmax is a softmax") {
  in_each_order([] {
    for (std::size_t version = 0; version < 4; ++version) {
      for (const auto& [rows, columns] : {std::pair(3, 4), {1, 1000}, {2, 516}})
        if (!kOnlyRaces || columns == 516)
          check_softmax(version, numbers(rows * columns, 1, 8), rows, columns);
      check_softmax(version, Values{-emulated::kInfinity, 0, 88, 89, 1e30, -1e30, -emulated::kInfinity, 1}, 2,
                    4);
    }
    if (!kOnlyRaces) check_softmax(0, numbers(130 * 4, 2, 8), 130, 4);  // more rows than a block has
  });
}

TEST_CASE("each version of the tutorial's linear layer is relu(x w^T + bias)") {
  in_each_order([] {
    for (const Problem p : {Problem{1, 1, 1}, {33, 65, 40}, {70, 130, 17}}) {
      if (kOnlyRaces && p.k != 40) continue;
      check_linear<float>("thread per output", p, [](const Linear<float>& l) {
        launch(&linear_thread_per_output<>, dim3(up(l.n, 32), up(l.m, 8)), dim3(32, 8), 0, nullptr, l);
      });
      check_linear<float>("shared tiles", p, [](const Linear<float>& l) {
        launch(&linear_shared_tiles<>, dim3(up(l.n, 32), up(l.m, 32)), dim3(32, 32), 0, nullptr, l);
      });
      check_linear<float>("register tiles", p, [](const Linear<float>& l) {
        launch(&linear_register_tiles<>, dim3(up(l.n, 128), up(l.m, 64)), 128, 0, nullptr, l);
      });
    }
    for (const Problem p : {Problem{1, 1, 8}, {70, 65, 72}, {64, 64, 96}}) {
      if (kOnlyRaces && p.k != 72) continue;
      check_linear<BFloat16>("tensor cores", p, [](const Linear<BFloat16>& l) {
        launch(&linear_tensor_cores<>, dim3(up(l.n, 64), up(l.m, 64)), 128, 0, nullptr, l);
      });
    }
  });
}

TEST_CASE("each version of the tutorial's convolution is a convolution") {
  in_each_order([] {
    const auto shape = [](int n, int h, int w, int c, int k, int window, int padding) {
      return Conv{nullptr, nullptr, nullptr, n, h, w, c, k, window, window, padding};
    };
    for (const Conv& p :
         {shape(1, 3, 4, 3, 2, 3, 0), shape(2, 5, 7, 3, 130, 3, 1), shape(1, 4, 4, 5, 3, 1, 0)}) {
      if (kOnlyRaces && p.k == 130) continue;
      check_conv("thread per output", p, &run_naive);
      check_conv("implicit GEMM", p, &run_gemm);
    }
    for (const Conv& p :
         {shape(2, 6, 7, 16, 130, 3, 1), shape(1, 9, 8, 32, 4, 1, 0), shape(1, 5, 5, 16, 5, 5, 2)})
      if (!kOnlyRaces || p.c == 32) check_conv("hoisted", p, &run_hoisted);
  });
}
