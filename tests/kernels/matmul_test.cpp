#include "tapestry/kernels/cpu/matmul.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "tapestry/core/threads.h"
#include "tapestry/kernels/ops/functions.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::kernels;

namespace {

std::mt19937 random_bits(7);
std::int64_t between(std::int64_t low, std::int64_t high) {
  return std::uniform_int_distribution<std::int64_t>(low, high)(random_bits);
}

constexpr double kGap = 1e30;  // marks memory that must be neither read nor written

// A matrix with gaps between its rows or its columns.
template <class T>
struct Operand {
  std::int64_t rows, cols;
  MatrixStrides strides;
  std::vector<T> data;

  Operand(std::int64_t r, std::int64_t c, bool transposed, std::int64_t gap) : rows(r), cols(c) {
    strides = transposed ? MatrixStrides{1, rows + gap} : MatrixStrides{cols + gap, 1};
    data.assign(
        static_cast<std::size_t>((transposed ? cols : rows) * (transposed ? strides.col : strides.row)),
        T(kGap));
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < cols; ++j) at(i, j) = T(between(-64, 64)) / T(15);
  }
  T& at(std::int64_t i, std::int64_t j) {
    return data[static_cast<std::size_t>(i * strides.row + j * strides.col)];
  }
};

template <class T>
void check_product(void (*multiply)(const GemmArgs&), std::int64_t m, std::int64_t n, std::int64_t k,
                   bool with_bias, bool repeat = false) {
  Operand<T> a(m, k, between(0, 1), between(0, 3)), b(k, n, between(0, 1), between(0, 3));
  Operand<T> c(m, n, false, between(0, 3)), bias(1, n, false, 0);
  GemmArgs g;
  g.m = m, g.n = n, g.k = k;
  g.a = a.data.data(), g.b = b.data.data(), g.c = c.data.data();
  g.a_strides = a.strides, g.b_strides = b.strides, g.c_row = c.strides.row;
  g.accumulate = between(0, 1);
  if (with_bias && between(0, 1)) g.bias = bias.data.data();
  Operand<T> before = c, again = c;
  multiply(g);
  double worst = 0;
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0, size = 0;
      const auto add = [&](double v) { sum += v, size += std::abs(v); };
      for (std::int64_t l = 0; l < k; ++l) add(static_cast<double>(a.at(i, l)) * b.at(l, j));
      if (g.accumulate) add(before.at(i, j));
      if (g.bias) add(bias.at(0, j));
      // |error| <= (k + 2) eps sum |a b| for any order of the sum (Higham 2002, section 3.1).
      const double bound = static_cast<double>(k + 2) * std::numeric_limits<T>::epsilon() * size;
      worst = std::max(worst, std::abs(c.at(i, j) - sum) - bound);
    }
  CAPTURE(m, n, k, a.strides.row, a.strides.col, b.strides.row, b.strides.col, g.accumulate);
  CHECK(worst <= 0);
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = n; j < c.strides.row; ++j) REQUIRE(c.at(i, j) == T(kGap));
  if (!repeat) return;
  g.c = again.data.data();
  multiply(g);
  CHECK(std::memcmp(again.data.data(), c.data.data(), c.data.size() * sizeof(T)) == 0);
}

template <class T>
void check_products(void (*multiply)(const GemmArgs&), bool with_bias) {
  for (int trial = 0; trial < 150; ++trial) {
    const std::int64_t most = trial % 10 == 0 ? 150 : 20;
    const std::int64_t m = between(1, most), n = between(1, most), k = between(1, most);
    check_product<T>(multiply, m, n, k, with_bias);
  }
}

void slot_f32(const GemmArgs& g) { gemm(kCPU, DType::f32, g); }
void slot_f64(const GemmArgs& g) { gemm(kCPU, DType::f64, g); }

}  // namespace

TEST_CASE("gemm: every implementation gives the values of sums in f64") {
  const int before = get_num_threads();
  for (const int threads : {1, 2}) {
    set_num_threads(threads);
    check_products<float>(&cpu::multiply_eigen<float>, false);
    check_products<double>(&cpu::multiply_eigen<double>, false);
    check_products<float>(&slot_f32, true);
    check_products<double>(&slot_f64, true);
  }
  set_num_threads(before);
}

TEST_CASE("gemm: products whose rows or columns are divided among threads give the values of f64") {
  const int before = get_num_threads();
  for (const int threads : {2, 3}) {
    set_num_threads(threads);
    // 2 and 3 parts of at least 64 rows or columns, one row less, and ragged parts.
    for (const std::int64_t longer : {127, 128, 129, 191, 192, 193, 257})
      for (const bool rows : {true, false})
        check_product<float>(&slot_f32, rows ? longer : 101, rows ? 101 : longer, 164, true, true);
    check_product<float>(&slot_f32, 150, 150, 97, true, true);
  }
  set_num_threads(before);
}

TEST_CASE(
    "gemm: two batch dimensions in any stride order, and a matrix that batches share, give the values of "
    "f64") {
  constexpr std::int64_t kOuter = 3, kInner = 7, m = 5, n = 6, k = 4;
  Operand<float> a(kOuter * kInner * m, k, false, 0), b(kOuter * k, n, false, 0),
      c(kOuter * kInner * m, n, false, 0);
  GemmArgs g;
  g.m = m, g.n = n, g.k = k;
  g.a = a.data.data(), g.b = b.data.data(), g.c = c.data.data();
  g.a_strides = {k, 1}, g.b_strides = {n, 1}, g.c_row = n;
  g.batch_ndim = 2;
  g.batch_sizes[0] = kOuter, g.batch_sizes[1] = kInner;
  g.a_batch[0] = m * k, g.a_batch[1] = kOuter * m * k;  // the inner batch dimension has the larger stride
  g.b_batch[0] = k * n, g.b_batch[1] = 0;
  g.c_batch[0] = kInner * m * n, g.c_batch[1] = m * n;
  gemm(kCPU, DType::f32, g);
  for (std::int64_t o = 0; o < kOuter; ++o)
    for (std::int64_t i = 0; i < kInner; ++i)
      for (std::int64_t r = 0; r < m; ++r)
        for (std::int64_t j = 0; j < n; ++j) {
          double sum = 0;
          for (std::int64_t l = 0; l < k; ++l)
            sum += static_cast<double>(a.at((i * kOuter + o) * m + r, l)) * b.at(o * k + l, j);
          REQUIRE(c.at((o * kInner + i) * m + r, j) == Approx(sum).margin(1e-4));
        }
}

TEST_CASE("gemm: with k = 0, C becomes zero or the bias, and accumulation adds to C") {
  std::vector<float> c(6, 5), bias{1, 2, 3};
  GemmArgs g;
  g.m = 2, g.n = 3, g.k = 0;
  g.c = c.data(), g.c_row = 3;
  g.a_strides = {1, 1}, g.b_strides = {3, 1};
  SECTION("zeros") {
    gemm(kCPU, DType::f32, g);
    CHECK(c == std::vector<float>(6, 0));
  }
  SECTION("bias") {
    g.bias = bias.data();
    gemm(kCPU, DType::f32, g);
    CHECK(c == std::vector<float>{1, 2, 3, 1, 2, 3});
  }
  SECTION("accumulate") {
    g.accumulate = true;
    g.bias = bias.data();
    gemm(kCPU, DType::f32, g);
    CHECK(c == std::vector<float>{6, 7, 8, 6, 7, 8});
  }
}

TEST_CASE("gemm: epilogues are applied after the bias and give the bits of the elementwise kernels") {
  struct Function {
    Epilogue epilogue;
    const Slot<Elementwise<2>>* forward;
    const Slot<Elementwise<3>>* backward;
  };
  const Function functions[] = {
      {Epilogue::relu, &slot<Relu>, nullptr},
      {Epilogue::gelu, &slot<Gelu>, nullptr},
      {Epilogue::gelu_tanh, &slot<GeluTanh>, nullptr},
      {Epilogue::relu_backward, nullptr, &slot<GradientOf<Relu>>},
      {Epilogue::gelu_backward, nullptr, &slot<GradientOf<Gelu>>},
      {Epilogue::gelu_tanh_backward, nullptr, &slot<GradientOf<GeluTanh>>},
  };
  constexpr std::int64_t m = 5, n = 7, row = 9, size = m * row;
  for_types<float, double, Half, BFloat16>([&]<class T> {
    const auto number = [](std::int64_t v) { return T(static_cast<float>(v) / 8); };
    // With k = 0, the argument of the function is C + bias, which is exact in every dtype.
    std::vector<T> before(size), bias(n), given(size);
    for (std::int64_t i = 0; i < size; ++i) {
      before[static_cast<std::size_t>(i)] = number(between(-16, 16));
      given[static_cast<std::size_t>(i)] = number(between(-16, 16));
    }
    for (T& x : bias) x = number(between(-8, 8));
    for (const Function& f : functions)
      for (const bool with_aux : {false, true}) {
        if (f.backward && !with_aux) continue;
        std::vector<T> sums = before, c = before, aux = given;
        for (std::int64_t i = 0; i < m; ++i)
          for (std::int64_t j = 0; j < n; ++j) {
            T& x = sums[static_cast<std::size_t>(i * row + j)];
            x = T(static_cast<float>(x) + static_cast<float>(bias[static_cast<std::size_t>(j)]));
          }
        Elementwise<3> e;
        e.ndim = 2, e.numel = m * n;
        e.sizes[0] = m, e.sizes[1] = n;
        std::vector<T> want = before;
        e.out = want.data(), e.in[0] = sums.data(), e.in[1] = given.data();
        for (int i = 0; i < 3; ++i) {
          e.dtypes[i] = dtype_of<T>;
          e.strides[i][0] = row, e.strides[i][1] = 1;
        }
        if (f.backward) {
          (*f.backward)(kCPU, dtype_of<T>, e);
        } else {
          Elementwise<2> unary;
          unary.ndim = 2, unary.numel = m * n;
          std::copy_n(e.sizes, 2, unary.sizes);
          unary.out = e.out, unary.in[0] = e.in[0];
          for (int i = 0; i < 2; ++i) {
            unary.dtypes[i] = e.dtypes[i];
            std::copy_n(e.strides[i], 2, unary.strides[i]);
          }
          (*f.forward)(kCPU, dtype_of<T>, unary);
        }
        GemmArgs g;
        g.m = m, g.n = n;
        g.a_strides = {1, 1}, g.b_strides = {n, 1}, g.c_row = row;
        g.c = c.data(), g.bias = bias.data(), g.accumulate = true;
        g.epilogue = f.epilogue;
        if (with_aux) g.aux = aux.data();
        gemm(kCPU, dtype_of<T>, g);
        CAPTURE(dtype_of<T>, static_cast<int>(f.epilogue), with_aux);
        const auto same = [](const std::vector<T>& x, const std::vector<T>& y) {
          return std::memcmp(x.data(), y.data(), x.size() * sizeof(T)) == 0;
        };
        CHECK(same(c, want));
        std::vector<T> kept =
            given;  // expected aux: the argument if the function stores it; gaps are unchanged
        if (with_aux && !f.backward)
          for (std::int64_t i = 0; i < m; ++i) std::copy_n(sums.begin() + i * row, n, kept.begin() + i * row);
        CHECK(same(aux, kept));
      }
  });
}

TEST_CASE("gemm: each batch element writes its own part of aux") {
  constexpr std::int64_t batch = 3, m = 4, n = 5, k = 6;
  Operand<float> a(batch * m, k, false, 0), b(k, n, false, 0), c(batch * m, n, false, 0), aux = c;
  GemmArgs g;
  g.m = m, g.n = n, g.k = k;
  g.a = a.data.data(), g.b = b.data.data(), g.c = c.data.data(), g.aux = aux.data.data();
  g.a_strides = {k, 1}, g.b_strides = {n, 1}, g.c_row = n;
  g.batch_ndim = 1, g.batch_sizes[0] = batch;
  g.a_batch[0] = m * k, g.c_batch[0] = m * n;
  g.epilogue = Epilogue::relu;
  gemm(kCPU, DType::f32, g);
  for (std::int64_t i = 0; i < batch * m; ++i)
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (std::int64_t l = 0; l < k; ++l) sum += static_cast<double>(a.at(i, l)) * b.at(l, j);
      REQUIRE(aux.at(i, j) == Approx(sum).margin(1e-4));
      REQUIRE(c.at(i, j) == std::max(aux.at(i, j), 0.0f));
    }
}

TEST_CASE(
    "column_sum: ragged and empty shapes give the values of f64, with the same bits for any number of "
    "threads") {
  const int before = get_num_threads();
  for (const auto& [rows, cols] :
       {std::pair<std::int64_t, std::int64_t>{1, 1}, {0, 5}, {1000, 3}, {77, 1000}}) {
    Operand<float> x(rows, cols, false, 0);
    const auto run = [&, r = rows, n = cols](int threads) {
      set_num_threads(threads);
      std::vector<float> y(static_cast<std::size_t>(n), -1);
      column_sum(kCPU, DType::f32, {r, n, x.data.data(), y.data()});
      return y;
    };
    const std::vector<float> y = run(1);
    CHECK(run(3) == y);
    for (std::int64_t j = 0; j < cols; ++j) {
      double sum = 0;
      for (std::int64_t i = 0; i < rows; ++i) sum += x.at(i, j);
      REQUIRE(y[static_cast<std::size_t>(j)] == Approx(sum).margin(1e-3));
    }
  }
  set_num_threads(before);
}

TEST_CASE("column_sum: millions of rows with a mean far from 0 lose no digits") {
  // The numbers differ by less than the distance between two adjacent numbers near the total. If they were
  // added one by one, all additions would be rounded in the same direction, and the sum would be wrong by
  // several percent.
  constexpr std::int64_t rows = 3'000'000;
  std::vector<float> x(rows);
  double sum = 0;
  for (float& value : x)
    sum += value = static_cast<float>(0.68 + static_cast<double>(random_bits()) * 0x1p-37);
  float y = 0;
  column_sum(kCPU, DType::f32, {rows, 1, x.data(), &y});
  CHECK(y == Approx(sum).epsilon(3e-5));
}

TEST_CASE("column_sum: 16-bit columns are added in f32 and rounded once") {
  constexpr std::int64_t rows = 1000, cols = 130;
  std::vector<BFloat16> x(rows * cols), y(cols);
  std::vector<double> sums(cols);
  for (std::int64_t i = 0; i < rows * cols; ++i) {
    x[static_cast<std::size_t>(i)] =
        BFloat16(static_cast<float>(0.7 + static_cast<double>(random_bits()) * 0x1p-33));
    sums[static_cast<std::size_t>(i % cols)] += static_cast<float>(x[static_cast<std::size_t>(i)]);
  }
  column_sum(kCPU, DType::bf16, {rows, cols, x.data(), y.data()});
  for (std::size_t j = 0; j < cols; ++j)
    // Half of the distance between adjacent numbers in bf16, and the errors of the sum in f32.
    CHECK(std::abs(static_cast<float>(y[j]) - sums[j]) <=
          std::ldexp(1, std::ilogb(sums[j]) - 8) + sums[j] * 0x1p-16);
}
