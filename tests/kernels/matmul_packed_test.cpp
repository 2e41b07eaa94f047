#include "tapestry/kernels/ops/matmul_packed.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "tapestry/core/half.h"
#include "tapestry/core/threads.h"
#include "tests/core/child.h"
#include "tests/support/amx.h"
#include "tests/support/catch.h"
#include "tests/support/kernel_paths.h"

using namespace tapestry;
using namespace tapestry::kernels;

namespace {

std::mt19937 random_bits(11);
template <class T>
std::vector<T> numbers(std::int64_t n) {
  std::vector<T> v(static_cast<std::size_t>(n));
  std::normal_distribution<float> normal(0.5f);
  for (T& x : v) x = T(normal(random_bits));
  return v;
}

constexpr float kGap = 1e30f;  // marks memory that must be neither read nor written

// An (m, k) matrix times a packed (k, n) matrix, beside a sum in f64.
template <class T>
void check_product(std::int64_t m, std::int64_t n, std::int64_t k, bool transposed, bool accumulate,
                   bool with_bias) {
  CAPTURE(dtype_of<T>, m, n, k, transposed, accumulate, with_bias);
  const std::int64_t a_row = k + 2, c_row = n + 3, b_pitch = (transposed ? k : n) + 1;
  std::vector<T> a = numbers<T>(m * a_row), b = numbers<T>((transposed ? n : k) * b_pitch),
                 c = numbers<T>(m * c_row);
  const std::vector<T> bias = numbers<T>(n);
  const auto at = [](std::vector<T>& v, std::int64_t i) -> T& { return v[static_cast<std::size_t>(i)]; };
  const T gap(kGap);
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = k; j < a_row; ++j) at(a, i * a_row + j) = gap;
    for (std::int64_t j = n; j < c_row; ++j) at(c, i * c_row + j) = gap;
  }
  const MatrixStrides strides = transposed ? MatrixStrides{1, b_pitch} : MatrixStrides{b_pitch, 1};
  const std::vector<T> before = c;
  std::vector<float> packed(static_cast<std::size_t>(packed_size(k, n)) + 1, kGap);
  pack_matrix(kCPU, dtype_of<T>,
              {.k = k, .n = n, .b = b.data(), .b_strides = strides, .packed = packed.data()});
  CHECK(packed.back() == kGap);
  packed_gemm(kCPU, dtype_of<T>,
              {.m = m,
               .n = n,
               .k = k,
               .a = a.data(),
               .a_row = a_row,
               .packed = packed.data(),
               .c = c.data(),
               .c_row = c_row,
               .bias = with_bias ? ConstArray(bias.data()) : ConstArray(nullptr),
               .accumulate = accumulate});
  // The sums are f32. A bf16 result is rounded once more, by at most 2^-8 of itself.
  const double rounding = sizeof(T) == 2 ? 0x1p-8 : 0;
  double worst = 0;
  bool gaps_kept = true;
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0, size = 0;
      const auto add = [&](double v) { sum += v, size += std::abs(v); };
      for (std::int64_t l = 0; l < k; ++l)
        add(static_cast<double>(static_cast<float>(at(a, i * a_row + l))) *
            static_cast<float>(at(b, l * strides.row + j * strides.col)));
      if (accumulate) add(static_cast<float>(before[static_cast<std::size_t>(i * c_row + j)]));
      if (with_bias) add(static_cast<float>(bias[static_cast<std::size_t>(j)]));
      // |error| <= (k + 2) eps sum |a b| for any order of the sum (Higham 2002, section 3.1).
      const double error = static_cast<double>(k + 2) * std::numeric_limits<float>::epsilon() * size;
      const double bound = error + rounding * (std::abs(sum) + error);
      worst = std::max(worst, std::abs(static_cast<float>(at(c, i * c_row + j)) - sum) - bound);
    }
    for (std::int64_t j = n; j < c_row; ++j)
      gaps_kept &= static_cast<float>(at(c, i * c_row + j)) == static_cast<float>(gap);
  }
  CHECK(worst <= 0);
  CHECK(gaps_kept);
}

}  // namespace

TEMPLATE_TEST_CASE("packed products: every height of a tile and every width of the last panel", "[isa]",
                   float, BFloat16) {
  for (std::int64_t m = 1; m <= 30; ++m) check_product<TestType>(m, 16 + m, 9, m % 2, m % 3 == 0, m % 5 == 0);
  for (std::int64_t n = 1; n <= 65; ++n) check_product<TestType>(7, n, 5, n % 2, n % 3 == 0, n % 4 == 0);
}

TEMPLATE_TEST_CASE("packed products: any number of rows of b, with and without a bias and an old c", "[isa]",
                   float, BFloat16) {
  for (const std::int64_t k : {0, 1, 2, 3, 255, 256, 257, 513})
    for (const bool accumulate : {false, true})
      for (const bool with_bias : {false, true})
        check_product<TestType>(8, 20, k, k % 2, accumulate, with_bias);
  check_product<TestType>(0, 20, 5, false, false, true);
}

TEST_CASE("packed products of bf16 are computed in f32 where vdpbf16ps does not pay and AMX is off") {
  const NoAmxTiles without_tiles;
  const Bf16DotPays pays(false);
  for (std::int64_t m = 1; m <= 30; ++m) check_product<BFloat16>(m, 16 + m, 9, m % 2, m % 3 == 0, m % 5 == 0);
}

namespace {

void check_infinity() {
  // The instruction multiplies pairs; the partner that is missing is 0 in both factors.
  const BFloat16 a[] = {BFloat16(1.0f), BFloat16(2.0f), BFloat16(std::numeric_limits<float>::infinity())},
                 b[] = {BFloat16(3.0f), BFloat16(-4.0f), BFloat16(0.5f)};
  float packed[packed_size(3, 1)];
  BFloat16 c[1];
  pack_matrix(kCPU, DType::bf16, {.k = 3, .n = 1, .b = b, .b_strides = {1, 1}, .packed = packed});
  packed_gemm(kCPU, DType::bf16,
              {.m = 1,
               .n = 1,
               .k = 3,
               .a = a,
               .a_row = 3,
               .packed = packed,
               .c = c,
               .c_row = 1,
               .bias = ConstArray(nullptr),
               .accumulate = false});
  CHECK(static_cast<float>(c[0]) == std::numeric_limits<float>::infinity());
}

}  // namespace

TEST_CASE("packed products of bf16: an infinity in the last of an odd number of rows gives no NaN", "[isa]") {
  check_infinity();
}

TEST_CASE("packed products of bf16 by AMX: few and many rows, ragged sizes, a bias and an old c") {
  const Amx amx;
  if (!amx.on()) return;
  for (const std::int64_t m : {1, 2, 15, 16, 17, 31, 32, 33, 49, 64, 65})
    check_product<BFloat16>(m, 16 + m, 9 + m, m % 2, m % 3 == 0, m % 5 == 0);
  for (const std::int64_t k : {0, 1, 2, 3, 255, 256, 257})
    for (const bool accumulate : {false, true})
      check_product<BFloat16>(8, 20, k, k % 2, accumulate, !accumulate);
  check_infinity();
  CHECK((amx_in_hardware() || Amx::products() > 0));
  CHECK(Amx::configured_threads() == 0);
}

TEST_CASE("packed products: smaller instruction sets") {
  for (const char* const most : {"AVX512_CORE", "AVX2", "SSE41"}) {
    const ChildResult child = run_child("[isa]", std::string("DNNL_MAX_CPU_ISA=") + most);
    INFO(most << "\n" << child.output);
    CHECK(child.status == 0);
  }
}

TEMPLATE_TEST_CASE("packed products: the result does not depend on the number of threads", "", float,
                   BFloat16) {
  const Amx amx;  // for bf16
  using T = TestType;
  const std::int64_t m = 40, n = 200, k = 300;
  const std::vector<T> a = numbers<T>(m * k), b = numbers<T>(k * n);
  std::vector<std::vector<T>> results;
  const int threads = get_num_threads();
  for (const int count : {1, 2, 5}) {
    set_num_threads(count);
    std::vector<float> packed(static_cast<std::size_t>(packed_size(k, n)));
    std::vector<T> c(static_cast<std::size_t>(m * n));
    pack_matrix(kCPU, dtype_of<T>,
                {.k = k, .n = n, .b = b.data(), .b_strides = {n, 1}, .packed = packed.data()});
    packed_gemm(kCPU, dtype_of<T>,
                {.m = m,
                 .n = n,
                 .k = k,
                 .a = a.data(),
                 .a_row = k,
                 .packed = packed.data(),
                 .c = c.data(),
                 .c_row = n,
                 .bias = ConstArray(nullptr),
                 .accumulate = false});
    results.push_back(c);
  }
  set_num_threads(threads);
  const auto same = [&](const std::vector<T>& other) {
    return std::memcmp(other.data(), results[0].data(), other.size() * sizeof(T)) == 0;
  };
  CHECK(same(results[1]));
  CHECK(same(results[2]));
}
