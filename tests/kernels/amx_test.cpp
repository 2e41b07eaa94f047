// Products by AMX. Without AMX, tests/support/amx.h executes the instructions that the library has.
#include "tapestry/kernels/cpu/matmul_amx.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "tapestry/kernels/cpu/matmul_packed.h"
#include "tests/support/amx.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::kernels;
using cpu::AmxTiles;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kGap = 12345;  // marks memory that must not be written
const float kNan = std::numeric_limits<float>::quiet_NaN();

// Memory of exactly so many elements, for AddressSanitizer.
template <class T>
std::unique_ptr<T[]> memory(std::int64_t n) {
  return std::make_unique<T[]>(static_cast<std::size_t>(n));
}

std::mt19937 random_bits(3);
std::unique_ptr<BFloat16[]> numbers(std::int64_t n) {
  auto x = memory<BFloat16>(n);
  std::normal_distribution<float> normal(0.5f);
  for (std::int64_t i = 0; i < n; ++i) x[i] = BFloat16(normal(random_bits));
  return x;
}

// b (k, columns) in panels that end where the last row of pairs ends.
struct Packed {
  std::unique_ptr<BFloat16[]> data;
  std::int64_t columns, panel;  // of all panels; elements from one panel to the next
};
Packed packed(const BFloat16* b, MatrixStrides strides, std::int64_t k, std::int64_t n) {
  const std::int64_t panels = (n + kPanelColumns - 1) / kPanelColumns,
                     panel = (k + 1) / 2 * 2 * kPanelColumns;
  Packed p{memory<BFloat16>(panels * panel), panels * kPanelColumns, panel};
  for (std::int64_t j = 0; j < panels; ++j)
    cpu::pack_pairs(k, std::min(kPanelColumns, n - j * kPanelColumns), b + j * kPanelColumns * strides.col,
                    strides, p.data.get() + j * panel);
  return p;
}

// An (m, k) times a (k, n) matrix. Rows of a are followed by a gap, but for the last one.
void check_product(AmxTiles& tiles, std::int64_t m, std::int64_t n, std::int64_t k, bool transposed,
                   bool accumulate) {
  CAPTURE(m, n, k, transposed, accumulate);
  const std::int64_t a_row = k + 3, b_row = (transposed ? k : n) + 1;
  const auto a = numbers(m > 0 ? (m - 1) * a_row + k : 0), b = numbers((transposed ? n : k) * b_row);
  const MatrixStrides strides = transposed ? MatrixStrides{1, b_row} : MatrixStrides{b_row, 1};
  const Packed p = packed(b.get(), strides, k, n);
  const std::int64_t c_row = p.columns + 1;
  const auto c = memory<float>(m * c_row + 1);
  for (std::int64_t i = 0; i <= m * c_row; ++i) c[i] = kGap;
  for (std::int64_t i = 0; accumulate && i < m; ++i)
    for (std::int64_t j = 0; j < p.columns; ++j) c[i * c_row + j] = static_cast<float>(i - j);
  tiles.multiply({.m = m,
                  .n = p.columns,
                  .depth = k,
                  .a = a.get(),
                  .a_row = a_row,
                  .b = p.data.get(),
                  .b_panel = p.panel,
                  .c = c.get(),
                  .c_row = c_row,
                  .accumulate = accumulate});
  double worst = 0;
  bool gaps_kept = c[m * c_row] == kGap;
  for (std::int64_t i = 0; i < m; ++i) {
    gaps_kept &= c[i * c_row + p.columns] == kGap;
    for (std::int64_t j = 0; j < p.columns; ++j) {
      double sum = 0, size = 0;
      const auto add = [&](double v) { sum += v, size += std::abs(v); };
      for (std::int64_t l = 0; l < k && j < n; ++l)
        add(static_cast<double>(static_cast<float>(a[i * a_row + l])) *
            static_cast<float>(b[l * strides.row + j * strides.col]));
      if (accumulate) add(static_cast<double>(i - j));
      // |error| <= (k + 2) eps sum |a b| for any order of the sum (Higham 2002, section 3.1). The processor
      // adds one sum to the tile for each 32 products.
      const double bound = static_cast<double>(k + k / 32 + 3) * std::numeric_limits<float>::epsilon() / 2;
      const double error = std::abs(c[i * c_row + j] - sum);
      worst = std::max(worst, size == 0 ? error : error / (bound * size));
    }
  }
  CHECK(worst <= 1);
  CHECK(gaps_kept);
}

}  // namespace

TEST_CASE("AMX: says what executes the instructions") {
  const Amx amx;
  if (amx_in_hardware()) SUCCEED("the processor executes AMX's instructions");
  else if (amx.on()) WARN("this process has no AMX: a handler of SIGILL executes its instructions");
  else WARN("skipped: neither AMX nor AVX2");
  CHECK(cpu::amx_tiles() == amx.on());
}

TEST_CASE("AMX: products of every ragged size, rows of a and b that are not dense, old sums") {
  const Amx amx;
  if (!amx.on()) return;
  const long before = Amx::products();
  {
    AmxTiles tiles;  // the configuration changes with the rows
    for (const std::int64_t m : {0, 1, 15, 16, 17, 31, 32, 33, 49, 63})
      for (const std::int64_t k : {0, 1, 2, 15, 31, 32, 33, 62, 63, 64, 65})
        check_product(tiles, m, 1 + (m * 7 + k * 5) % 70, k, (m + k) % 2, k % 3 == 0);
    for (const std::int64_t n : {1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65})
      for (const bool transposed : {false, true}) {
        check_product(tiles, 17, n, 33, transposed, n % 2);
        check_product(tiles, 5, n, 50, transposed, n % 2);
      }
  }
  CHECK((amx_in_hardware() || Amx::products() > before));
  CHECK(Amx::configured_threads() == 0);
}

TEST_CASE(
    "AMX: the sums of even and odd products, the rounding, and subnormal numbers as Intel defines them") {
  const Amx amx;
  if (!amx.on()) return;
  constexpr std::int64_t kM = 3, kN = 32, kK = 32;
  const auto a = numbers(kM * kK), b = numbers(kK * kN);
  a[0] = BFloat16(1e-39f), b[5 * kN] = BFloat16(-1e-39f);  // subnormal: the products with them are 0
  b[0] = BFloat16(1e38f), a[5] = BFloat16(1e38f);
  const Packed p = packed(b.get(), {kN, 1}, kK, kN);
  const auto c = memory<float>(kM * kN);
  for (std::int64_t i = 0; i < kM * kN; ++i) c[i] = static_cast<float>(i) / 3;
  const std::vector<float> old(c.get(), c.get() + kM * kN);
  AmxTiles().multiply({.m = kM,
                       .n = kN,
                       .depth = kK,
                       .a = a.get(),
                       .a_row = kK,
                       .b = p.data.get(),
                       .b_panel = p.panel,
                       .c = c.get(),
                       .c_row = kN,
                       .accumulate = true});
  const auto value = [](BFloat16 x) {
    const auto v = static_cast<float>(x);
    return std::abs(v) < std::numeric_limits<float>::min() ? 0.0f : v;
  };
  for (std::int64_t i = 0; i < kM; ++i)
    for (std::int64_t j = 0; j < kN; ++j) {
      float even = 0, odd = 0;
      for (std::int64_t l = 0; l < kK; l += 2) {
        even = std::fma(value(a[i * kK + l]), value(b[l * kN + j]), even);
        odd = std::fma(value(a[i * kK + l + 1]), value(b[(l + 1) * kN + j]), odd);
      }
      CAPTURE(i, j);
      CHECK(c[i * kN + j] == old[static_cast<std::size_t>(i * kN + j)] + (even + odd));
    }
}

TEST_CASE("AMX: NaN and infinities stay in their rows and columns, and meet no zeros that fill up a tile") {
  const Amx amx;
  if (!amx.on()) return;
  for (const std::int64_t k : {3, 32, 45}) {
    CAPTURE(k);
    constexpr std::int64_t kM = 19, kN = 40;
    const auto a = numbers(kM * k), b = numbers((k + 1) * kN);
    for (std::int64_t j = 0; j < kN; ++j)
      b[k * kN + j] = BFloat16(kNan);  // a row that is packed, but not used
    for (std::int64_t i = 0; i < kM * k; ++i) a[i] = BFloat16(1.0f);
    for (std::int64_t i = 0; i < k * kN; ++i) b[i] = BFloat16(1.0f);
    a[18 * k + k - 1] = BFloat16(kInf);
    a[2 * k] = BFloat16(kNan);
    b[(k - 1) * kN + 39] = BFloat16(-kInf);
    const Packed p = packed(b.get(), {kN, 1}, k + 1, kN);
    const auto c = memory<float>(kM * p.columns);
    AmxTiles().multiply({.m = kM,
                         .n = p.columns,
                         .depth = k,
                         .a = a.get(),
                         .a_row = k,
                         .b = p.data.get(),
                         .b_panel = p.panel,
                         .c = c.get(),
                         .c_row = p.columns,
                         .accumulate = false});
    bool right = true;
    for (std::int64_t i = 0; i < kM; ++i)
      for (std::int64_t j = 0; j < kN; ++j) {
        const float x = c[i * p.columns + j];
        if (i == 2) right &= std::isnan(x);
        else if (j == 39) right &= x == -kInf;  // in row 18 too: +inf times -inf
        else right &= x == (i == 18 ? kInf : static_cast<float>(k));
      }
    CHECK(right);
  }
}

TEST_CASE("AMX: each thread has its tiles, and a row has the same bits with any rows beside it") {
  const Amx amx;
  if (!amx.on()) return;
  constexpr std::int64_t kM = 50, kN = 64, kK = 77;
  const auto a = numbers(kM * kK), b = numbers(kK * kN);
  const Packed p = packed(b.get(), {kN, 1}, kK, kN);
  const auto rows = [&](std::int64_t first, std::int64_t count, float* c) {
    AmxTiles().multiply({.m = count,
                         .n = kN,
                         .depth = kK,
                         .a = a.get() + first * kK,
                         .a_row = kK,
                         .b = p.data.get(),
                         .b_panel = p.panel,
                         .c = c + first * kN,
                         .c_row = kN,
                         .accumulate = false});
  };
  std::vector<float> whole(kM * kN), parts(kM * kN), single(kM * kN);
  rows(0, kM, whole.data());
  std::vector<std::thread> threads;
  constexpr std::int64_t kBounds[] = {0, 1, 18, 33, kM};
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] { rows(kBounds[t], kBounds[t + 1] - kBounds[t], parts.data()); });
  for (std::thread& t : threads) t.join();
  for (std::int64_t i = 0; i < kM; ++i) rows(i, 1, single.data());
  CHECK(whole == parts);
  CHECK(whole == single);
  CHECK(Amx::configured_threads() == 0);
}
