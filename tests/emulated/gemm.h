#pragma once
// A matrix product in memory that a kernel must neither read nor write beyond its elements, and what the CPU
// makes of the same contract in f64.
#include "tapestry/kernels/cuda/gemm.cuh"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "tapestry/kernels/ops/gemm.h"
#include "tests/emulated/memory.h"

namespace emulated {

using tapestry::BFloat16;
using tapestry::DType;
using tapestry::kCPU;
using tapestry::kMaxDims;
using tapestry::kernels::Epilogue;
using tapestry::kernels::Gemm;
using tapestry::kernels::MatrixStrides;

using Values = std::vector<double>;

/// What is asked for. Operands lie at `offset` elements behind an address of 16 bytes, with `gap` elements
/// behind each line, and so many more behind each matrix of a batch.
struct Product {
  std::int64_t m = 1, n = 1, k = 1;
  bool a_along_k = true, b_along_k = false;
  std::int64_t gap = 0;
  std::size_t offset = 0;
  bool bias = false, accumulate = false, aux = false;
  Epilogue epilogue = Epilogue::none;
  std::vector<std::int64_t> batch = {};     // sizes
  bool a_shared = false, b_shared = false;  // by the first dimension of the batch
  std::int64_t a_apart = 0, b_apart = 0, c_apart = 0;
};

/// Reproducible multiples of 1/8 in [-1, 1], which bf16 has too.
inline Values eighths(std::int64_t n, unsigned salt) {
  Values v(static_cast<std::size_t>(n));
  std::uint32_t state = 12345 + 77 * salt;
  for (double& x : v) {
    state = state * 1664525u + 1013904223u;
    x = static_cast<double>((state >> 20) % 17) / 8 - 1;
  }
  return v;
}

/// One operand: `lines` of `length` elements for each matrix of the batch, with gaps that hold `between`.
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
    const Values own = eighths(matrices * lines * length, salt);
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

inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
inline constexpr double kUntouched = 1024;  // between the rows of C

struct Operands {
  Operand a, b, c, aux;
  Values bias;
  explicit Operands(const Product& p)
      : a(p, p.a_along_k ? p.m : p.k, p.a_along_k ? p.k : p.m, p.a_shared, p.a_apart, 1, kNaN),
        b(p, p.b_along_k ? p.n : p.k, p.b_along_k ? p.k : p.n, p.b_shared, p.b_apart, 2, kNaN),
        c(p, p.m, p.n, false, p.c_apart, 3, kUntouched),
        aux(p, p.m, p.n, false, p.c_apart, 4, kUntouched),
        bias(eighths(p.n, 5)) {
    const auto poison = [](double& x) { x = kNaN; };  // every element is to be written
    if (!p.accumulate) c.for_each(poison);
    if (!is_gradient(p.epilogue)) aux.for_each(poison);
  }
};

inline Gemm gemm_of(const Product& p, const Operands& o) {
  Gemm g;
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

/// C and aux by the CPU in f64.
inline void multiply_f64(const Product& p, Operands& o) {
  Gemm g = gemm_of(p, o);
  g.a = o.a.values.data(), g.b = o.b.values.data(), g.c = o.c.values.data();
  if (p.bias) g.bias = o.bias.data();
  if (p.aux) g.aux = o.aux.values.data();
  tapestry::kernels::gemm(kCPU, DType::f64, g);
}

/// For any order of a sum of k terms |error| <= k u sum |a b| (Higham 2002, section 3.1); the epilogues have
/// slopes below 1.2 and errors of a few units of what goes in. Then the rounding to T.
template <class T>
void check_result(const char* what, const Product& p, const Values& got, const Values& want,
                  const Values& size) {
  constexpr double unit = 0x1p-24, storing = std::is_same_v<T, float> ? unit : 0x1p-8;
  std::size_t bad = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double tolerance =
        1.2 * static_cast<double>(p.k + 24) * unit * size[i] + storing * std::abs(want[i]) + 0x1p-120;
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
template <class T>
struct Rounded {  // for Block, whose elements are made from those of a container
  const Values& values;
  std::size_t size() const { return values.size(); }
  T operator[](std::size_t i) const { return T(static_cast<float>(values[i])); }
};

/// Runs `launch(g)` in each order and checks all that it wrote.
template <class T, class Launch>
void check_product(const Product& p, const Operands& given, const Launch& launch) {
  CAPTURE(p.m, p.n, p.k, p.a_along_k, p.b_along_k, p.gap, p.offset, p.bias, p.accumulate, p.aux,
          static_cast<int>(p.epilogue), p.batch.size(), sizeof(T));
  Operands want = given;
  multiply_f64(p, want);
  Product plain = p;  // the same with absolute values
  plain.epilogue = Epilogue::none;
  plain.aux = false;
  Operands size = given;
  for (Values* v : {&size.a.values, &size.b.values, &size.c.values, &size.bias})
    for (double& x : *v) x = std::abs(x);
  multiply_f64(plain, size);

  in_each_order([&] {
    const Block<T> a(Rounded<T>{given.a.values}, p.offset), b(Rounded<T>{given.b.values}, p.offset),
        c(Rounded<T>{given.c.values}, p.offset), aux(Rounded<T>{given.aux.values}, p.offset),
        bias(Rounded<T>{given.bias}, p.offset);
    Gemm g = gemm_of(p, given);
    if (p.k) g.a = a.data(), g.b = b.data();
    g.c = c.data();
    if (p.bias) g.bias = bias.data();
    if (p.aux) g.aux = aux.data();
    launch(g);
    check_result<T>("C", p, values_of(c), want.c.values, size.c.values);
    check_result<T>("aux", p, values_of(aux), want.aux.values, size.c.values);
  });
}
template <class T, class Launch>
void check_product(const Product& p, const Launch& launch) {
  check_product<T>(p, Operands(p), launch);
}

/// As the slot runs it.
template <class T>
void check_product(const Product& p) {
  check_product<T>(p, [](const Gemm& g) { tapestry::kernels::cuda::launch_gemm<T>(g, nullptr); });
}
/// By large or small tiles, in so many parts of k.
template <class T>
void check_strategy(const Product& p, bool large, std::int64_t splits = 1) {
  CAPTURE(large, splits);
  check_product<T>(p, [=](const Gemm& g) {
    tapestry::kernels::cuda::launch_gemm<T>(g, {large, splits}, nullptr);
  });
}

}  // namespace emulated
