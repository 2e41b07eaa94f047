#pragma once
// Runs matrix products on the emulator and compares them with the CPU's kernel in f64. Gaps between lines
// hold NaN or a sentinel, so that accesses outside the operands are detected.
#include "tapestry/kernels/cuda/matmul.cuh"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "tapestry/kernels/ops/matmul.h"
#include "tests/emulated/values.h"

namespace emulated {

using tapestry::BFloat16;
using tapestry::DType;
using tapestry::kCPU;
using tapestry::kMaxDims;
using tapestry::kernels::Epilogue;
using tapestry::kernels::GemmArgs;
using tapestry::kernels::MatrixStrides;

/// A product to test. Each operand starts `offset` elements after a 16-byte boundary. There are `gap`
/// elements after each line, and a_apart, b_apart or c_apart more after each matrix of a batch.
struct Product {
  std::int64_t m = 1, n = 1, k = 1;
  bool a_along_k = true, b_along_k = false;
  std::int64_t gap = 0;
  std::size_t offset = 0;
  bool bias = false, accumulate = false, aux = false;
  Epilogue epilogue = Epilogue::none;
  std::vector<std::int64_t> batch = {};     // sizes
  bool a_shared = false, b_shared = false;  // broadcast along the first batch dimension
  bool row_sums = false;
  std::int64_t a_apart = 0, b_apart = 0, c_apart = 0;
};

/// An operand: `lines` of `length` elements per matrix of the batch. Gaps hold the value `between`.
struct Operand {
  std::int64_t lines, length, pitch, matrix, matrices = 1, batch[kMaxDims] = {};
  Values values;

  Operand(const Product& p, std::int64_t lines_, std::int64_t length_, bool shared, std::int64_t apart,
          unsigned salt, double between)
      : lines(lines_),
        length(length_),
        pitch(std::max<std::int64_t>(length + p.gap, 1)),
        matrix(lines * pitch + apart) {
    for (std::size_t d = p.batch.size(); d-- > 0;) {
      if (shared && d == 0) continue;
      batch[d] = matrices * matrix;
      matrices *= p.batch[d];
    }
    const bool any = matrices * lines * length != 0;
    values.assign(static_cast<std::size_t>(any ? (matrices - 1) * matrix + (lines - 1) * pitch + length : 0),
                  between);
    const Values own = numbers(matrices * lines * length, salt, 1);
    std::size_t i = 0;
    for_each([&](double& x) { x = own[i++]; });
  }
  template <class F>
  void for_each(const F& f) {
    for (std::int64_t i = 0; i < matrices * lines; ++i)
      for (std::int64_t j = 0; j < length; ++j)
        f(values[static_cast<std::size_t>(i / lines * matrix + i % lines * pitch + j)]);
  }
};

inline constexpr double kUntouched = 1024;  // sentinel between the rows of C

struct Operands {
  Operand a, b, c, aux;
  Values bias, row_sums;
  explicit Operands(const Product& p)
      : a(p, p.a_along_k ? p.m : p.k, p.a_along_k ? p.k : p.m, p.a_shared, p.a_apart, 1, kNaN),
        b(p, p.b_along_k ? p.n : p.k, p.b_along_k ? p.k : p.n, p.b_shared, p.b_apart, 2, kNaN),
        c(p, p.m, p.n, false, p.c_apart, 3, kUntouched),
        aux(p, p.m, p.n, false, p.c_apart, 4, kUntouched),
        bias(numbers(p.n, 5, 1)),
        row_sums(static_cast<std::size_t>(p.row_sums ? p.m : 0), kNaN) {
    const auto poison = [](double& x) { x = kNaN; };  // every element must be overwritten
    if (!p.accumulate) c.for_each(poison);
    if (!is_gradient(p.epilogue)) aux.for_each(poison);
  }
};

inline GemmArgs gemm_of(const Product& p, const Operands& o) {
  GemmArgs g;
  g.m = p.m, g.n = p.n, g.k = p.k;
  g.a_strides = p.a_along_k ? MatrixStrides{o.a.pitch, 1} : MatrixStrides{1, o.a.pitch};
  g.b_strides = p.b_along_k ? MatrixStrides{1, o.b.pitch} : MatrixStrides{o.b.pitch, 1};
  g.c_row = o.c.pitch;
  g.accumulate = p.accumulate;
  g.epilogue = p.epilogue;
  g.batch_ndim = static_cast<int>(p.batch.size());
  for (std::size_t d = 0; d < p.batch.size(); ++d) {
    g.batch_sizes[d] = p.batch[d];
    g.a_batch[d] = o.a.batch[d], g.b_batch[d] = o.b.batch[d], g.c_batch[d] = o.c.batch[d];
  }
  return g;
}

/// Computes C and aux on the CPU in f64.
inline void multiply_f64(const Product& p, Operands& o) {
  GemmArgs g = gemm_of(p, o);
  g.a = o.a.values.data(), g.b = o.b.values.data(), g.c = o.c.values.data();
  if (p.bias) g.bias = o.bias.data();
  if (p.aux) g.aux = o.aux.values.data();
  if (p.row_sums) g.row_sums = o.row_sums.data();
  tapestry::kernels::gemm(kCPU, DType::f64, g);
}

/// Checks the error bound of a product. For any order of a sum of k terms, |error| <= k u sum |a b| (Higham
/// 2002, section 3.1). The epilogues have slopes below 1.2 and errors of a few roundings of their argument.
/// Rounding to T comes last.
template <class T>
void check_result(const char* what, const Product& p, const Values& got, const Values& want,
                  const Values& size) {
  constexpr bool is_half = std::is_same_v<T, tapestry::Half>;
  constexpr double unit = 0x1p-24, storing = sizeof(T) >= 4 ? unit : is_half ? 0x1p-11 : 0x1p-8;
  constexpr double least = is_half ? 0x1p-25 : 0x1p-120;  // half of the smallest number
  std::size_t bad = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double tolerance =
        1.2 * static_cast<double>(p.k + 24) * unit * size[i] + storing * std::abs(want[i]) + least;
    const bool fits = std::isnan(want[i]) ? std::isnan(got[i])
                                          : got[i] == want[i] || std::abs(got[i] - want[i]) <= tolerance;
    if (fits || ++bad > 3) continue;
    CAPTURE(what, i, got[i], want[i], tolerance);
    CHECK(fits);
  }
  CAPTURE(what);
  CHECK(bad == 0);
}

template <class T>
Values values_of(const Block<T>& block) {
  Values v(block.size());
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = static_cast<double>(static_cast<float>(block[i]));
  return v;
}
/// Runs `launch(g)` in each thread order and checks C and aux.
template <class T, class Launch>
void check_product(const Product& p, const Operands& given, const Launch& launch) {
  CAPTURE(p.m, p.n, p.k, p.a_along_k, p.b_along_k, p.gap, p.offset, p.bias, p.accumulate, p.aux,
          static_cast<int>(p.epilogue), p.batch.size(), p.row_sums, sizeof(T));
  Operands want = given;
  multiply_f64(p, want);
  Product plain = p;  // with absolute values, for the error bound
  plain.epilogue = Epilogue::none;
  plain.aux = false;
  Operands size = given;
  for (Values* v : {&size.a.values, &size.b.values, &size.c.values, &size.bias})
    for (double& x : *v) x = std::abs(x);
  multiply_f64(plain, size);

  in_each_order([&] {
    const Block<T> a(given.a.values, p.offset), b(given.b.values, p.offset), c(given.c.values, p.offset),
        aux(given.aux.values, p.offset), bias(given.bias, p.offset), row_sums(given.row_sums, p.offset);
    GemmArgs g = gemm_of(p, given);
    if (p.k) g.a = a.data(), g.b = b.data();
    g.c = c.data();
    if (p.bias) g.bias = bias.data();
    if (p.aux) g.aux = aux.data();
    if (p.row_sums) g.row_sums = row_sums.data();
    launch(g);
    check_result<T>("C", p, values_of(c), want.c.values, size.c.values);
    check_result<T>("aux", p, values_of(aux), want.aux.values, size.c.values);
    check_result<T>("row sums", p, values_of(row_sums), want.row_sums, size.row_sums);
  });
}
template <class T, class Launch>
void check_product(const Product& p, const Launch& launch) {
  check_product<T>(p, Operands(p), launch);
}

/// Checks the strategy that launch_gemm() chooses.
template <class T>
void check_product(const Product& p) {
  check_product<T>(p, [](const GemmArgs& g) { tapestry::kernels::cuda::launch_gemm<T>({}, g); });
}
/// Checks large or small tiles with `splits` splits of k.
template <class T>
void check_strategy(const Product& p, bool large, std::int64_t splits = 1) {
  CAPTURE(large, splits);
  check_product<T>(p, [=](const GemmArgs& g) {
    tapestry::kernels::cuda::launch_gemm<T>({}, g, {large, splits});
  });
}

/// Calls f for every combination of A and B contiguous along k or across it; if kOnlyRaces, for one of them.
template <class F>
void in_each_layout(Product p, const F& f) {
  static unsigned calls = 0;
  const unsigned chosen = next_choice(calls, 4);
  for (unsigned layout = 0; layout < 4; ++layout) {
    if (kOnlyRaces && layout != chosen) continue;
    p.a_along_k = layout / 2 != 0, p.b_along_k = layout % 2 != 0;
    f(p);
  }
}

}  // namespace emulated
