// Products of bf16 matrices by the processor's instructions, and without them.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tapestry/core/half.h"
#include "tapestry/core/threads.h"
#include "tapestry/kernels/cpu/bf16_dot.h"
#include "tapestry/kernels/cpu/isa.h"
#include "tapestry/kernels/cpu/matmul.h"
#include "tapestry/kernels/cpu/onednn_faults.h"
#include "tests/core/child.h"
#include "tests/support/catch.h"
#include "tests/support/kernel_paths.h"

using namespace tapestry;
using namespace tapestry::kernels;

namespace {

std::mt19937 random_bits(7);
std::int64_t between(std::int64_t low, std::int64_t high) {
  return std::uniform_int_distribution<std::int64_t>(low, high)(random_bits);
}

constexpr float kGap = 0x1p90f;  // marks memory that must be neither read nor written

/// A matrix with gaps between its rows or its columns. T is BFloat16 or float.
template <class T>
struct Operand {
  MatrixStrides strides;
  std::vector<T> data;

  Operand(std::int64_t rows, std::int64_t cols, bool transposed, std::int64_t gap) {
    strides = transposed ? MatrixStrides{1, rows + gap} : MatrixStrides{cols + gap, 1};
    data.assign(
        static_cast<std::size_t>((transposed ? cols : rows) * (transposed ? strides.col : strides.row)),
        T(kGap));
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < cols; ++j)
        data[index(i, j)] = T(static_cast<float>(between(-64, 64)) / 16);
  }
  std::size_t index(std::int64_t i, std::int64_t j) const {
    return static_cast<std::size_t>(i * strides.row + j * strides.col);
  }
  double at(std::int64_t i, std::int64_t j) const { return static_cast<float>(data[index(i, j)]); }
};

/// Checks c (+)= a b (+ bias) against sums in f64. `multiply` returns false if it has computed nothing.
template <class C, class F>
bool check_product(std::int64_t m, std::int64_t n, std::int64_t k, F multiply) {
  const Operand<BFloat16> a(m, k, between(0, 1), between(0, 3)), b(k, n, between(0, 1), between(0, 3));
  const Operand<BFloat16> bias(1, n, false, 0);
  Operand<C> c(m, n, false, between(0, 3));
  const Operand<C> before = c;
  GemmArgs g;
  g.m = m, g.n = n, g.k = k;
  g.a = a.data.data(), g.b = b.data.data(), g.c = c.data.data();
  g.a_strides = a.strides, g.b_strides = b.strides, g.c_row = c.strides.row;
  g.accumulate = between(0, 1);
  if (between(0, 1)) g.bias = bias.data.data();
  if (!multiply(g)) return false;
  // An f32 sum of k + 2 terms in any order (Higham 2002, section 3.1), and for bf16 the rounding of the
  // result.
  const double summing = static_cast<double>(k + 2) * std::numeric_limits<float>::epsilon();
  const double storing = std::is_same_v<C, float> ? 0 : 0x1p-8;
  double worst = 0;
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0, size = 0;
      const auto add = [&](double v) { sum += v, size += std::abs(v); };
      for (std::int64_t l = 0; l < k; ++l) add(a.at(i, l) * b.at(l, j));
      if (g.accumulate) add(before.at(i, j));
      if (g.bias) add(bias.at(0, j));
      worst = std::max(worst, std::abs(c.at(i, j) - sum) - summing * size - storing * std::abs(sum));
    }
  CAPTURE(m, n, k, a.strides.row, a.strides.col, b.strides.row, b.strides.col, g.accumulate,
          static_cast<bool>(g.bias));
  CHECK(worst <= 0);
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = n; j < c.strides.row; ++j) REQUIRE(c.at(i, j) == kGap);
  return true;
}

void check_products() {
  const int before = get_num_threads();
  for (const int threads : {1, 2}) {
    set_num_threads(threads);
    for (int trial = 0; trial < 40; ++trial) {
      const std::int64_t most = trial % 10 == 0 ? 150 : 20;
      check_product<BFloat16>(between(1, most), between(1, most), between(0, most), [](const GemmArgs& g) {
        gemm(kCPU, DType::bf16, g);
        return true;
      });
    }
  }
  set_num_threads(before);
}

// Whether oneDNN multiplies a matrix large enough for AMX.
bool has_instructions() {
  constexpr std::int64_t kSize = 256;
  const std::vector<BFloat16> ones(kSize * kSize, BFloat16(1.0f));
  std::vector<float> c(kSize * kSize);
  GemmArgs g;
  g.m = g.n = g.k = g.c_row = kSize;
  g.a = ones.data(), g.b = ones.data(), g.c = c.data();
  g.a_strides = g.b_strides = {kSize, 1};
  return cpu::multiply_bf16(g, true);
}

}  // namespace

TEST_CASE("bf16 products with f32 sums are sums in f64, apart from rounding") { check_products(); }

TEST_CASE("child: bf16 products without the instructions", "[.]") {
  CHECK_FALSE(has_instructions());
  check_products();
}

TEST_CASE("without the processor's bf16 instructions, bf16 products have the same specification") {
  for (const char* isa : {"AVX512_CORE", "AVX2", "SSE41"}) {
    const ChildResult child =
        run_child("child: bf16 products without the instructions", std::string("DNNL_MAX_CPU_ISA=") + isa);
    INFO(isa << child.output);
    CHECK(child.status == 0);
  }
}

TEST_CASE("where vdpbf16ps does not pay, bf16 products are computed by AMX or in f32") {
  const Bf16DotPays pays(false);
  CHECK_FALSE(cpu::bf16_dot_pays());
  check_products();
  const std::vector<BFloat16> ones(64 * 64, BFloat16(1.0f));
  std::vector<float> c(64 * 64);
  GemmArgs g;
  g.m = g.n = g.k = g.c_row = 64;
  g.a = ones.data(), g.b = ones.data(), g.c = c.data();
  g.a_strides = g.b_strides = {64, 1};
  CHECK_FALSE(cpu::multiplies_by_bf16_dot(cpu::bf16_kernel(g, true)));
  for (const char* dot : {"brg:avx512_core_bf16", "brg_matmul:avx512_core_bf16", "brgconv:avx512_core_bf16"})
    CHECK(cpu::multiplies_by_bf16_dot(dot));
  for (const char* other : {"brg:avx512_core_amx_bf16", "brg_matmul:avx10_1_512_amx", "gemm:jit", ""})
    CHECK_FALSE(cpu::multiplies_by_bf16_dot(other));
}

TEST_CASE("where the processor has AMX, oneDNN has a kernel for large bf16 products that is not refused") {
  constexpr std::int64_t kSize = 1024;
  const std::vector<BFloat16> ones(kSize * kSize, BFloat16(1.0f));
  GemmArgs g;
  g.m = g.n = g.k = g.c_row = kSize;
  g.a = ones.data(), g.b = ones.data();
  g.a_strides = g.b_strides = {kSize, 1};
  const auto kernel = [&](bool pays) {
    const Bf16DotPays dot(pays);
    return cpu::bf16_kernel(g, true);
  };
  if (cpu::isa() < cpu::Isa::amx || kernel(true).empty()) {
    WARN("skipped: this process has no AMX, or this build no oneDNN");
    return;
  }
  CHECK_FALSE(kernel(false).empty());
}

TEST_CASE("AMX kernels of oneDNN versions with the tile fault do not compute the inner sizes that have it") {
  using cpu::has_tile_fault;
  const char* const amx = "brg:avx512_core_amx_bf16";
  for (const std::int64_t k : {63, 95, 127, 1055}) {
    CAPTURE(k);
    for (const cpu::OneDnnVersion faulty :
         {cpu::OneDnnVersion{2, 5, 4}, {2, 6, 0}, {2, 6, 3}, {2, 7, 0}, {2, 7, 3}, {3, 0, 0}, {3, 0, 1}}) {
      CHECK(has_tile_fault(amx, k, faulty));
      CHECK_FALSE(has_tile_fault("brg:avx512_core_bf16", k, faulty));
    }
    for (const cpu::OneDnnVersion mended :
         {cpu::OneDnnVersion{2, 7, 4}, {2, 7, 5}, {2, 8, 0}, {3, 1, 0}, {3, 7, 2}, {4, 0, 0}})
      CHECK_FALSE(has_tile_fault(amx, k, mended));
  }
  for (const std::int64_t k : {1, 31, 32, 33, 61, 62, 64, 65, 94, 96})
    CHECK_FALSE(has_tile_fault(amx, k, {2, 6, 3}));
}

TEST_CASE("a product with the planted tile fault takes oneDNN's next kernel") {
  if (!has_instructions()) {
    WARN("skipped: this processor or this build has no bf16 instructions");
    return;
  }
  for (const std::int64_t k : {62, 63, 64, 95, 127})
    for (const auto& [m, n] : {std::pair{33, 16}, {80, 10}, {17, 130}}) {
      CAPTURE(k, m, n);
      const std::vector<BFloat16> a(static_cast<std::size_t>(m * k), BFloat16(1.0f));
      const std::vector<BFloat16> b(static_cast<std::size_t>(k * n), BFloat16(1.0f));
      std::vector<float> c(static_cast<std::size_t>(m * n));
      GemmArgs g;
      g.m = m, g.n = n, g.k = k, g.c_row = n;
      g.a = a.data(), g.b = b.data(), g.c = c.data();
      g.a_strides = {k, 1}, g.b_strides = {n, 1};
      const std::string first = cpu::bf16_kernel(g, true);
      if (first.empty()) {  // oneDNN has the fault and no other kernel that pays
        CHECK_FALSE(cpu::bf16_dot_pays());
        continue;
      }
      cpu::plant_tile_fault(first);
      CHECK((cpu::bf16_kernel(g, true) == first) == (k % 32 != 31));
      if (cpu::multiply_bf16(g, true))
        CHECK(std::all_of(c.begin(), c.end(), [&](float v) { return v == static_cast<float>(k); }));
      // Every kernel is avoided, so the product is computed without oneDNN.
      cpu::plant_tile_fault(":");
      if (cpu::bf16_dot_pays()) CHECK(cpu::multiply_bf16(g, true) == (k % 32 != 31));
      CHECK(check_product<BFloat16>(m, n, k, [](const GemmArgs& any) {
        gemm(kCPU, DType::bf16, any);
        return true;
      }));
      cpu::plant_tile_fault("");
    }
}

TEST_CASE("bf16 instructions: products with f32 results, and special numbers") {
  if (!has_instructions()) {
    WARN("skipped: this processor or this build has no bf16 instructions");
    return;
  }
  for (int trial = 0; trial < 20; ++trial)
    CHECK((check_product<float>(between(1, 70), between(1, 70), between(1, 70),
                                [](const GemmArgs& g) { return cpu::multiply_bf16(g, true); }) ||
           !cpu::bf16_dot_pays()));
  // Overflow to infinity in the result, infinity minus infinity, NaN, and a zero of each sign.
  const auto product = [](std::vector<float> x, std::vector<float> y) {
    std::vector<BFloat16> a(x.begin(), x.end()), b(y.begin(), y.end());
    a.reserve(2 * a.size());  // so that the iterators stay valid
    a.insert(a.end(), a.begin(), a.begin() + static_cast<std::ptrdiff_t>(b.size()));
    BFloat16 c[2];
    GemmArgs g;
    // Two equal rows, because a single row has a kernel of its own.
    g.m = 2, g.n = g.c_row = 1, g.k = static_cast<std::int64_t>(b.size());
    g.a = a.data(), g.b = b.data(), g.c = c;
    g.a_strides = {g.k, 1}, g.b_strides = {1, 1};
    gemm(kCPU, DType::bf16, g);
    return static_cast<float>(c[0]);
  };
  constexpr float kInf = std::numeric_limits<float>::infinity(),
                  kNaN = std::numeric_limits<float>::quiet_NaN();
  CHECK(product({0x1p127f, 0x1p127f}, {1, 1}) == kInf);
  CHECK(product({kInf, 1}, {1, 2}) == kInf);
  CHECK(product({1, 1, kInf}, {1, 2, 3}) == kInf);  // k is odd
  CHECK(product({1, 1, 3}, {1, 2, -kInf}) == -kInf);
  CHECK(std::isnan(product({kInf, kInf}, {1, -1})));
  CHECK(std::isnan(product({kNaN, 1}, {1, 1})));
}
