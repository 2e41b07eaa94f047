// Tests that softmax kernels match the CPU's kernels in f64 on every launch path, for ragged sizes and
// extremes.
#include "tapestry/kernels/cuda/softmax.cuh"

#include <cmath>
#include <string>
#include <vector>

#include "tests/emulated/values.h"

using namespace tapestry;
using namespace tapestry::kernels;
namespace gpu = tapestry::kernels::cuda;
using namespace emulated;
using tapestry::kernels::log_softmax, tapestry::kernels::softmax;

namespace {

std::int64_t count(const SoftmaxShape& s) { return s.outer * s.n * s.inner; }

template <class T, bool log>
void check_forward(const SoftmaxShape& shape, const Values& x, std::size_t offset,
                   std::int64_t split_below = gpu::kSplitRowsBelow) {
  CAPTURE(shape.outer, shape.n, shape.inner, offset, log, sizeof(T));
  Values want(x.size()), error(x.size());
  (log ? log_softmax : softmax)(kCPU, DType::f64, {shape, x.data(), want.data()});
  double largest = 0;
  for (const double v : x)
    if (std::isfinite(v)) largest = std::max(largest, std::abs(v));
  for (std::size_t i = 0; i < x.size(); ++i)  // x - max is rounded before exp
    error[i] = (roundings(shape.n) + 4 * std::min(largest, 128.0)) * (log ? 1 : want[i]) +
               (log ? 4 * std::abs(want[i]) : 0);
  in_each_order([&] {
    const Block<T> in(x, offset), out(x.size(), offset);
    gpu::launch_softmax<gpu::SoftmaxForward<T, log>, T>(shape, {{in.data()}}, out.data(), {}, split_below);
    check_close("out", out, want, error);
    gpu::launch_softmax<gpu::SoftmaxForward<T, log>, T>(shape, {{in.data()}}, in.data(), {},
                                                        split_below);  // in place
    check_close("in place", in, want, error);
  });
}

template <class T, bool log>
void check_backward(const SoftmaxShape& shape, const Values& x, const Values& dy, std::size_t offset,
                    std::int64_t split_below) {
  CAPTURE(shape.outer, shape.n, shape.inner, offset, log, sizeof(T));
  Values y(x.size()), want(x.size()), error(x.size());
  (log ? log_softmax : softmax)(kCPU, DType::f64, {shape, x.data(), y.data()});
  y = rounded<T>(y);
  (log ? log_softmax_backward : softmax_backward)(kCPU, DType::f64,
                                                  {shape, y.data(), dy.data(), want.data()});
  for (std::int64_t o = 0; o < shape.outer; ++o)
    for (std::int64_t i = 0; i < shape.inner; ++i) {
      const auto at = [&](std::int64_t k) {
        return static_cast<std::size_t>((o * shape.n + k) * shape.inner + i);
      };
      double size = 0;  // sum of the magnitudes of the row's terms
      for (std::int64_t k = 0; k < shape.n; ++k) size += std::abs(dy[at(k)]) * (log ? 1 : y[at(k)]);
      for (std::int64_t k = 0; k < shape.n; ++k) {
        const double p = log ? std::exp(y[at(k)]) * (1 + std::abs(y[at(k)]) / 16) : y[at(k)];
        error[at(k)] = roundings(shape.n) * (p * size + std::abs(dy[at(k)]) * (log ? 1 : p));
      }
    }
  in_each_order([&] {
    const Block<T> in_y(y, offset), in_dy(dy, offset), out(x.size(), offset);
    gpu::launch_softmax<gpu::SoftmaxBackward<T, log>, T>(shape, {{in_y.data(), in_dy.data()}}, out.data(), {},
                                                         split_below);
    check_close("out", out, want, error);
  });
}

template <class T>
void check_all(const SoftmaxShape& shape, const Values& x, std::size_t offset, std::int64_t split_below) {
  check_forward<T, false>(shape, x, offset, split_below);
  check_forward<T, true>(shape, x, offset, split_below);
  const Values dy = numbers(count(shape), 9, 2);
  check_backward<T, false>(shape, x, dy, offset, split_below);
  check_backward<T, true>(shape, x, dy, offset, split_below);
}
void check_both(const SoftmaxShape& shape, std::size_t offset = 0,
                std::int64_t split_below = gpu::kSplitRowsBelow) {
  const Values x = numbers(count(shape), 1, 8);
  for_float_dtypes([&]<class T>() { check_all<T>(shape, x, offset, split_below); });
}

}  // namespace

TEST_CASE("softmax kernels: rows in registers of a warp or a block give the CPU's values") {
  for (const std::int64_t n : {1, 2, 7, 8, 31, 32, 33, 64, 100, 255, 256}) check_both({3, n, 1});
  for (const std::int64_t n : {257, 1000, 1023, 1024}) check_both({5, n, 1});
  for (const std::int64_t n : {1025, 1032, 2049, 4096}) check_both({2, n, 1});
}

TEST_CASE("softmax kernels: blocks of 512 and 1024 and streamed rows give the CPU's values") {
  for (const std::int64_t n : {4104, 4105, 8193, 16384}) check_both({1, n, 1});
  for (const std::int64_t n : {16385, 16392}) check_both({1, n, 1}, 0, 0);
}

TEST_CASE("softmax kernels: long rows split over several blocks give the CPU's values") {
  check_all<float>({2, 16385, 1}, numbers(2 * 16385, 1, 8), 0, 3);
  check_all<BFloat16>({1, 16392, 1}, numbers(16392, 1, 8), 1, 2);
}

TEST_CASE("softmax kernels: misaligned arrays give the same values") {
  for (const std::size_t offset : {1, 2, 4}) check_both({3, 64, 1}, offset);
}

TEST_CASE("softmax kernels: strided rows give the CPU's values") {
  for (const std::int64_t inner : {2, 31, 32, 33, 70})
    for (const std::int64_t n : {1, 3, 8, 19}) check_both({2, n, inner});
}

TEST_CASE("softmax kernels: empty tensors launch nothing") {
  for (const SoftmaxShape& shape : {SoftmaxShape{0, 3, 1}, SoftmaxShape{3, 0, 1}, SoftmaxShape{3, 3, 0}}) {
    cuda_emulator::take_launches();
    check_both(shape);
    CHECK(cuda_emulator::take_launches().empty());
  }
}

TEST_CASE("softmax kernels: infinities, NaN, huge and tiny values give the CPU's values") {
  const std::int64_t n = 40;
  for (const std::int64_t inner : {1, 3}) {
    const SoftmaxShape shape{10, n, inner};
    Values x = numbers(count(shape), 4, 1);
    const auto row = [&](std::int64_t o) { return &x[static_cast<std::size_t>(o * n * inner)]; };
    for (std::int64_t k = 0; k < n * inner; ++k) {
      row(1)[k] = -kInfinity;
      if (k % 3) row(2)[k] = -kInfinity;
      row(5)[k] *= 0x1p100;
      row(6)[k] *= 0x1p-130;
      row(7)[k] = 1e30;
      row(8)[k] = k < inner ? 0 : -100 - static_cast<double>(k) / 16;  // subnormal results
      row(9)[k] = k % 2 ? -kInfinity : kNaN;
    }
    row(3)[5] = kInfinity;
    row(4)[n * inner - 1] = kNaN;
    x = rounded<BFloat16>(x);
    check_forward<float, false>(shape, x, 0);
    check_forward<float, true>(shape, x, 0);
    check_forward<BFloat16, false>(shape, x, 0);
    check_forward<BFloat16, true>(shape, x, 0);
  }
  Values x(20000, -kInfinity);  // most threads see only -inf
  x[777] = 3;
  check_forward<float, false>({1, 20000, 1}, x, 0, 0);
  check_forward<float, true>({1, 20000, 1}, x, 1);
  x[19999] = kNaN;
  check_forward<float, false>({1, 20000, 1}, x, 0);
}

TEST_CASE("softmax kernels: shape, alignment and number of rows choose the kernel") {
  const auto kernels = [](const SoftmaxShape& shape, std::size_t offset,
                          std::int64_t split_below = gpu::kSplitRowsBelow) {
    const Block<float> x(static_cast<std::size_t>(count(shape)), offset);
    return kernels_of([&] {
      gpu::launch_softmax<gpu::SoftmaxForward<float, false>, float>(shape, {{x.data()}}, x.data(), {},
                                                                    split_below);
    });
  };
  CHECK_THAT(kernels({2, 4096, 1}, 0), ContainsSubstring("row_in_registers"));
  CHECK_THAT(kernels({2, 2048, 1}, 0), ContainsSubstring("Li128ELi16ELi4E"));
  CHECK_THAT(kernels({2, 4096, 1}, 0), ContainsSubstring("Li256ELi16ELi4E"));
  CHECK_THAT(kernels({2, 4096, 1}, 1), ContainsSubstring("Li256ELi16ELi1E"));
  CHECK_THAT(kernels({2, 4095, 1}, 0), ContainsSubstring("Li256ELi16ELi1E"));
  CHECK_THAT(kernels({2, 8192, 1}, 0), ContainsSubstring("Li512ELi16ELi4E"));
  CHECK_THAT(kernels({2, 8196, 1}, 0), ContainsSubstring("Li1024ELi16ELi4E"));
  CHECK_THAT(kernels({2, 16388, 1}, 0, 2), ContainsSubstring("row_streamed"));
  CHECK_THAT(kernels({1, 16388, 1}, 0, 2),
             ContainsSubstring("row_part_states") && ContainsSubstring("row_part_results"));
  CHECK_THAT(kernels({1, 40, 2}, 0), ContainsSubstring("columns"));
}
