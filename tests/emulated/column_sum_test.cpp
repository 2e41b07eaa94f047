// Sums over rows against sums in f64.
#include "tapestry/kernels/cuda/column_sum.cuh"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tapestry/kernels/ops/gemm.h"
#include "tests/emulated/memory.h"

using namespace tapestry;
using emulated::Block;
namespace gpu = tapestry::kernels::cuda;

namespace {

template <class T>
void check_sums(std::int64_t rows, std::int64_t cols, std::size_t offset = 0, std::int64_t special = -1) {
  CAPTURE(rows, cols, offset, special, sizeof(T));
  std::vector<double> x(static_cast<std::size_t>(rows * cols)), want(static_cast<std::size_t>(cols), 7), size;
  std::uint32_t state = 99;
  for (double& v : x) {
    state = state * 1664525u + 1013904223u;
    v = static_cast<double>((state >> 20) % 17) / 8 - 1;
  }
  if (special >= 0) x[static_cast<std::size_t>(special)] = std::numeric_limits<double>::quiet_NaN();
  kernels::column_sum(kCPU, DType::f64, rows, cols, x.data(), want.data());
  size = want;
  std::vector<double> sizes = x;
  for (double& v : sizes) v = std::abs(v);
  kernels::column_sum(kCPU, DType::f64, rows, cols, sizes.data(), size.data());
  std::vector<float> values(x.begin(), x.end());
  emulated::in_each_order([&] {
    const Block<T> in(values, offset), out(want, offset);
    for (std::size_t j = 0; j < out.size(); ++j) out[j] = T(std::numeric_limits<float>::quiet_NaN());
    gpu::launch_column_sum<T>(rows, cols, in.data(), out.data(), kCPU, nullptr);
    std::size_t bad = 0;
    for (std::size_t j = 0; j < want.size(); ++j) {
      const double got = static_cast<double>(static_cast<float>(out[j]));
      const double tolerance =  // at most 64 terms in turn, the rest in parts
          160 * 0x1p-24 * size[j] + (std::is_same_v<T, float> ? 0x1p-24 : 0x1p-8) * std::abs(want[j]);
      bad += std::isnan(want[j]) ? !std::isnan(got) : !(std::abs(got - want[j]) <= tolerance);
    }
    CHECK(bad == 0);
  });
}

}  // namespace

TEST_CASE("column sums: a block a column") {
  for (const std::int64_t rows : {0, 1, 7, 8, 9, 31, 33, 64})
    for (const std::int64_t cols : {1, 4, 8, 31, 128, 129, 264}) {
      check_sums<float>(rows, cols);
      check_sums<BFloat16>(rows, cols);
    }
  check_sums<float>(64, 0);
}

TEST_CASE("column sums: in two stages") {
  for (const std::int64_t cols : {1, 4, 8, 33}) {
    check_sums<float>(65, cols);
    check_sums<float>(1000, cols);
    check_sums<BFloat16>(1000, cols);
  }
}

TEST_CASE("column sums: not aligned, NaN in its column alone") {
  for (const std::size_t offset : {1, 2, 4}) {
    check_sums<float>(70, 8, offset, 13);
    check_sums<BFloat16>(70, 8, offset, 13);
  }
}

TEST_CASE("column sums: each shape has its way") {
  const auto launches = [](std::int64_t rows, std::int64_t cols) {
    const Block<float> x(static_cast<std::size_t>(rows * cols)), y(static_cast<std::size_t>(cols));
    cuda_emulator::take_launches();
    gpu::launch_column_sum(rows, cols, x.data(), y.data(), kCPU, nullptr);
    return cuda_emulator::take_launches();
  };
  CHECK(launches(64, 130)[0].grid.x == 5);
  CHECK(launches(64, 128)[0].grid.x == 1);
  CHECK(launches(64, 128).size() == 1);
  const auto two = launches(640, 128);
  REQUIRE(two.size() == 2);
  CHECK(two[0].grid.y == 10);
  CHECK(two[1].grid.y == 1);
}
