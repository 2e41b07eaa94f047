// Tests that column sum kernels match sums in f64.
#include "tapestry/kernels/cuda/matmul_column_sum.cuh"

#include "tapestry/kernels/ops/matmul.h"
#include "tests/emulated/values.h"

using namespace tapestry;
using namespace emulated;
namespace gpu = tapestry::kernels::cuda;

namespace {

/// `nan`: the index of an element that is NaN, or -1.
template <class T>
void check_sums(std::int64_t rows, std::int64_t cols, std::size_t offset = 0, std::int64_t nan = -1) {
  CAPTURE(rows, cols, offset, nan, sizeof(T));
  Values x = numbers(rows * cols, 1, 1), want(static_cast<std::size_t>(cols)), error = want;
  if (nan >= 0) x[static_cast<std::size_t>(nan)] = kNaN;
  kernels::column_sum(kCPU, DType::f64, {rows, cols, x.data(), want.data()});
  const Values sizes = magnitudes(x);
  kernels::column_sum(kCPU, DType::f64, {rows, cols, sizes.data(), error.data()});
  // The bound is 160 unit roundoffs of sum |x|. It allows for 64 additions one after another, and for adding
  // the sums of the parts.
  for (double& e : error) e *= 160;
  in_each_order([&] {
    const Block<T> in(x, offset), out(Values(want.size(), kNaN), offset);
    gpu::launch_column_sum<T>({}, {rows, cols, in.data(), out.data()});
    check_close("sums", out, want, error);
  });
}

}  // namespace

TEST_CASE("column sums: one block per column tile gives the exact sums") {
  for (const std::int64_t rows : {0, 1, 7, 8, 9, 31, 33, 64, 65, 256})
    for (const std::int64_t cols : {1, 4, 8, 31, 128, 129, 264}) {
      check_sums<float>(rows, cols);
      check_sums<BFloat16>(rows, cols);
    }
  check_sums<float>(64, 0);
}

TEST_CASE("column sums: rows split over blocks are added by a second launch") {
  for (const std::int64_t cols : {1, 4, 8, 33}) {
    check_sums<float>(257, cols);
    check_sums<float>(1000, cols);
    check_sums<BFloat16>(1000, cols);
  }
}

TEST_CASE("column sums: partial sums of split rows are kept in f32 and rounded once") {
  constexpr std::int64_t rows = 1000;
  for (const std::int64_t cols : {136, 129}) {
    // The numbers use all bits of their mantissas, and their mean is 0.7. So a partial sum in bf16 would be
    // rounded.
    Values x(static_cast<std::size_t>(rows * cols));
    Random random(2);
    for (double& value : x) value = random() * 0x1p-32 + 0.2;
    x = rounded<BFloat16>(x);
    const Block<BFloat16> in(x), out(static_cast<std::size_t>(cols));
    gpu::launch_column_sum<BFloat16>({}, {rows, cols, in.data(), out.data()});
    for (std::int64_t j = 0; j < cols; ++j) {
      double sum = 0;
      for (std::int64_t i = 0; i < rows; ++i) sum += x[static_cast<std::size_t>(i * cols + j)];
      const double got = static_cast<float>(out[static_cast<std::size_t>(j)]);
      CAPTURE(cols, j, got, sum);
      // Half of the distance between adjacent numbers in bf16, and the errors of the sum in f32.
      CHECK(std::abs(got - sum) <= std::ldexp(1, std::ilogb(sum) - 8) + sum * 0x1p-16);
    }
  }
}

TEST_CASE("column sums: misaligned arrays give the same values, and NaN affects only its own column") {
  for (const std::size_t offset : {1, 2, 4}) {
    for (const std::int64_t rows : {70, 300}) {
      check_sums<float>(rows, 8, offset, 13);
      check_sums<BFloat16>(rows, 8, offset, 13);
    }
  }
}

TEST_CASE("column sums: the grid has one block per 32 packs of columns and per part of the rows") {
  const auto launches = [](std::int64_t rows, std::int64_t cols) {
    const Block<float> x(static_cast<std::size_t>(rows * cols)), y(static_cast<std::size_t>(cols));
    cuda_emulator::take_launches();
    gpu::launch_column_sum<float>({}, {rows, cols, x.data(), y.data()});
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

TEST_CASE("column sums: f16 gives the exact sums, in one part and in several") {
  for (const std::int64_t rows : {9, 256, 257})
    for (const std::int64_t cols : {8, 33}) check_sums<Half>(rows, cols);
}
