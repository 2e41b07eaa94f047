#include "tapestry/kernels/cpu/matmul.h"

#include "tapestry/core/dtype.h"
#include "tapestry/core/error.h"
#include "tapestry/kernels/cpu/compute.h"
#include "tapestry/kernels/ops/functions.h"

#ifdef TAPESTRY_HAS_ONEDNN
#include <oneapi/dnnl/dnnl.hpp>
#endif

namespace tapestry::kernels::cpu {

template <>
void multiply<double>(const GemmArgs& g) {
  multiply_eigen<double>(g);
}

#ifdef TAPESTRY_HAS_ONEDNN
namespace {

// Rows [row, row + rows) and columns [col, col + cols) of the product, on the OpenMP threads that are free.
void multiply_block(const GemmArgs& g, std::int64_t row, std::int64_t rows, std::int64_t col,
                    std::int64_t cols) {
  const bool a_plain = g.a_strides.row_major(g.k), b_plain = g.b_strides.row_major(g.n);
  const auto status =
      dnnl_sgemm(a_plain ? 'N' : 'T', b_plain ? 'N' : 'T', rows, cols, g.k, 1.0f,
                 g.a.as<float>() + row * g.a_strides.row, a_plain ? g.a_strides.row : g.a_strides.col,
                 g.b.as<float>() + col * g.b_strides.col, b_plain ? g.b_strides.row : g.b_strides.col,
                 g.accumulate ? 1.0f : 0.0f, g.c.as<float>() + row * g.c_row + col, g.c_row);
  check<Error>(status == dnnl_success, "[gemm] oneDNN failed with status ", static_cast<int>(status),
               " for (", g.m, ", ", g.k, ") x (", g.k, ", ", g.n, ")");
}

}  // namespace
#endif

template <>
void multiply<float>(const GemmArgs& g) {
  if (multiply_row(g)) return;
#ifdef TAPESTRY_HAS_ONEDNN
  const int threads = compute_threads();  // sets the number of OpenMP threads, which oneDNN uses
  // oneDNN 2.6 divides a product among threads by fixed numbers of its blocks. Of two threads, one then
  // waits: the products of a transformer block (2048 rows, width 256) reached 0.62 to 0.94 of two cores' FMA
  // rate, and 0.82 to 0.95 where each thread computes its part of the longer side as a product of its own.
  constexpr std::int64_t kSide = 64;  // a shorter part wastes the kernel's blocks, which have 48 columns
  constexpr double kWork = 1 << 21;   // multiplications; below, the division was measured to gain nothing
  const std::int64_t longer = std::max(g.m, g.n);
  if (threads == 1 || longer < threads * kSide ||
      static_cast<double>(g.m) * static_cast<double>(g.n) * static_cast<double>(g.k) < kWork)
    return multiply_block(g, 0, g.m, 0, g.n);
  parallel_for(longer, kSide, [&g](std::int64_t begin, std::int64_t end) {
    if (g.m >= g.n) multiply_block(g, begin, end - begin, 0, g.n);
    else multiply_block(g, 0, g.m, begin, end - begin);
  });
#else
  multiply_eigen<float>(g);
#endif
}

namespace {

template <class T>
void fill_rows(const GemmArgs& g) {
  T* const c = g.c.as<T>();
  const T* const bias = g.bias.as<T>();
  parallel_for(g.m, grain_of(g.n), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      if (bias) std::copy_n(bias, g.n, c + i * g.c_row);
      else std::fill_n(c + i * g.c_row, g.n, T(0));
  });
}
template <class T>
void add_bias(const GemmArgs& g) {
  T* const c = g.c.as<T>();
  const T* const bias = g.bias.as<T>();
  parallel_for(g.m, grain_of(g.n), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      for (std::int64_t j = 0; j < g.n; ++j) c[i * g.c_row + j] += bias[j];
  });
}

// Computes out = f(in...) for arrays with the layout of C.
template <class T, int N>
Elementwise<N> over_c(const GemmArgs& g, T* out, const T* const (&in)[N - 1]) {
  Elementwise<N> e;
  e.ndim = 2;
  e.numel = g.m * g.n;
  e.sizes[0] = g.m, e.sizes[1] = g.n;
  e.out = out;
  for (int i = 0; i < N; ++i) {
    e.strides[i][0] = g.c_row, e.strides[i][1] = 1;
    if (i > 0) e.in[i - 1] = in[i - 1];
    e.dtypes[i] = dtype_of<T>;
  }
  if (g.c_row == g.n) {  // dense arrays are one row, for which kernels have their fastest loops
    e.ndim = 1;
    e.sizes[0] = e.numel;
    for (int i = 0; i < N; ++i) e.strides[i][0] = 1;
  }
  return e;
}
// The argument of the function lies in aux if there is one, else in C.
template <class T, class F>
void finish_function(const GemmArgs& g) {
  T *const c = g.c.as<T>(), *const aux = g.aux.as<T>();
  slot<F>(kCPU, dtype_of<T>, over_c<T, 2>(g, c, {aux ? aux : c}));
}
template <class T, class F>
void finish_gradient(const GemmArgs& g) {
  T* const c = g.c.as<T>();
  slot<GradientOf<F>>(kCPU, dtype_of<T>, over_c<T, 3>(g, c, {c, g.aux.as<T>()}));
}
template <class T>
void finish(const GemmArgs& g) {
  switch (g.epilogue) {
    case Epilogue::none:
      return;
    case Epilogue::relu:
      return finish_function<T, Relu>(g);
    case Epilogue::gelu:
      return finish_function<T, Gelu>(g);
    case Epilogue::gelu_tanh:
      return finish_function<T, GeluTanh>(g);
    case Epilogue::relu_backward:
      return finish_gradient<T, Relu>(g);
    case Epilogue::gelu_backward:
      return finish_gradient<T, Gelu>(g);
    case Epilogue::gelu_tanh_backward:
      return finish_gradient<T, GeluTanh>(g);
  }
}

// Computes one matrix product in f32 or f64.
template <class T>
void product(GemmArgs g) {
  if (g.k == 0) {
    if (!g.accumulate) fill_rows<T>(g);
    else if (g.bias) add_bias<T>(g);
    return;
  }
  if (g.bias) {
    // The product is accumulated onto the bias, which saves another pass over C.
    if (g.accumulate) add_bias<T>(g);
    else fill_rows<T>(g);
    g.accumulate = true;
  }
  multiply<T>(g);
}

// Computes one matrix product in f32 or f64, and its epilogue. If the caller also wants the epilogue's
// argument (aux, such as the input of a GELU), the product is computed there, and the epilogue reads it from
// there.
template <class T>
void product_and_epilogue(const GemmArgs& g) {
  GemmArgs sums = g;
  if (g.aux && g.epilogue != Epilogue::none && !is_gradient(g.epilogue)) {
    if (g.accumulate)
      for (std::int64_t i = 0; i < g.m; ++i)
        std::copy_n(g.c.as<T>() + i * g.c_row, g.n, g.aux.as<T>() + i * g.c_row);
    sums.c = g.aux;
  }
  product<T>(sums);
  finish<T>(g);
}

template <class T>
float* widen(const T* x, float* y, std::int64_t rows, std::int64_t cols, MatrixStrides& s) {
  const bool plain = s.row_major(cols);
  const std::int64_t lines = plain ? rows : cols, length = plain ? cols : rows;
  parallel_for(lines, grain_of(length),
               [=, from = plain ? s.row : s.col](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t i = begin; i < end; ++i) to_float(x + i * from, y + i * length, length);
               });
  // The copy y is dense, so columns of length 1 form one contiguous row.
  if (plain || length == 1) s = {std::max<std::int64_t>(cols, 1), 1};
  else s = {1, std::max<std::int64_t>(rows, 1)};
  return y;
}

// Writes the f32 sums c, whose rows are dense, as the f16 or bf16 matrix `to`, whose rows are `row` apart.
template <class T>
void narrow(const float* c, T* to, const GemmArgs& g, std::int64_t row) {
  parallel_for(g.m, grain_of(g.n), [=, n = g.n](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) from_float(c + i * n, to + i * row, n);
  });
}

// Applies the epilogue to the f32 sums c, whose rows are dense, and writes them as g's f16 or bf16 matrix C.
template <class T>
void finish_half(const LaunchContext& context, const GemmArgs& g, float* c) {
  GemmArgs f = g;
  f.c = c, f.c_row = g.n, f.aux = {};
  Scratch<float> at;  // where a gradient is taken
  if (g.aux && is_gradient(g.epilogue)) {
    at = Scratch<float>(context.device, g.m * g.n);
    MatrixStrides strides{g.c_row, 1};
    f.aux = widen(g.aux.as<T>(), at.data(), g.m, g.n, strides);
  } else if (g.aux && g.epilogue != Epilogue::none) {
    narrow(c, g.aux.as<T>(), g, g.c_row);
  }
  finish<float>(f);
  narrow(c, g.c.as<T>(), g, g.c_row);
}

// Computes one row of a product of f16 or bf16 operands, in f32. Does nothing and returns false if g is more
// than that.
template <class T>
bool row_half(const LaunchContext& context, const GemmArgs& g) {
  if (g.m != 1 || g.accumulate) return false;
  const Scratch<float> memory(context.device, g.k + g.n);
  float *const a = memory.data(), *const c = a + g.k;
  const T* const from = g.a.as<T>();
  for (std::int64_t i = 0; i < g.k; ++i) a[i] = load(from[i * g.a_strides.col]);
  if (g.bias) to_float(g.bias.as<T>(), c, g.n);
  else std::fill_n(c, g.n, 0.0f);
  add_row_product(a, g.b.as<T>(), g.b_strides, g.k, c, g.n);
  finish_half<T>(context, g, c);
  return true;
}

// Computes one matrix product of f16 or bf16 operands, in f32.
template <class T>
void product_half(const LaunchContext& context, GemmArgs g) {
  if (row_half<T>(context, g)) return;
  if constexpr (std::is_same_v<T, BFloat16>) {
    if (g.epilogue == Epilogue::none) {
      if (multiply_bf16(g, false)) return;
    } else {
      const Scratch<float> sums(context.device, g.m * g.n);
      GemmArgs product = g;
      product.c = sums.data(), product.c_row = g.n;
      if (g.accumulate) {
        MatrixStrides strides{g.c_row, 1};
        widen(g.c.as<T>(), sums.data(), g.m, g.n, strides);
      }
      if (multiply_bf16(product, true)) return finish_half<T>(context, g, sums.data());
    }
  }
  const Scratch<float> memory(context.device, g.m * g.k + g.k * g.n + g.m * g.n + g.n);
  float* const a = memory.data();
  float* const b = a + g.m * g.k;
  float* const c = b + g.k * g.n;
  float* const bias = c + g.m * g.n;
  g.a = widen(g.a.as<T>(), a, g.m, g.k, g.a_strides);
  g.b = widen(g.b.as<T>(), b, g.k, g.n, g.b_strides);
  if (g.bias) {
    to_float(g.bias.as<T>(), bias, g.n);
    g.bias = bias;
  }
  const GemmArgs given = g;
  if (g.accumulate) {
    MatrixStrides strides{g.c_row, 1};
    widen(g.c.as<T>(), c, g.m, g.n, strides);
  }
  g.c = c, g.c_row = g.n, g.aux = {};
  product<float>(g);
  finish_half<T>(context, given, c);
}

// out[j] = sum over i of in[i * row + j * column].
template <class T>
void sum_columns(std::int64_t rows, std::int64_t cols, const T* in, std::int64_t row, std::int64_t column,
                 T* out) {
  using C = Compute<T>;
  constexpr std::int64_t kBlock = 64;
  // Each thread sums its own columns from the first row to the last, in blocks of rows. A single f32 sum of
  // thousands of rows would lose digits.
  constexpr std::int64_t kRows = 128;
  parallel_for(cols, std::max(kBlock, grain_of(rows)), [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t j0 = begin; j0 < end; j0 += kBlock) {
      const std::int64_t n = std::min(kBlock, end - j0);
      C total[kBlock] = {};
      for (std::int64_t i0 = 0; i0 < rows; i0 += kRows) {
        C part[kBlock] = {};
        for (std::int64_t i = i0; i < std::min(rows, i0 + kRows); ++i)
          if (column == 1)
            for (std::int64_t j = 0; j < n; ++j) part[j] += load(in[i * row + j0 + j]);
          else
            for (std::int64_t j = 0; j < n; ++j) part[j] += load(in[i * row + (j0 + j) * column]);
        for (std::int64_t j = 0; j < n; ++j) total[j] += part[j];
      }
      for (std::int64_t j = 0; j < n; ++j) out[j0 + j] = T(total[j]);
    }
  });
}

template <class T>
void column_sum_kernel(const LaunchContext&, const ColumnSumArgs& a) {
  sum_columns(a.rows, a.cols, a.x.as<T>(), a.cols, 1, a.y.as<T>());
}

template <class T>
void gemm_kernel(const LaunchContext& context, const GemmArgs& g) {
  std::int64_t batch = 1;
  for (int d = 0; d < g.batch_ndim; ++d) batch *= g.batch_sizes[d];
  if (batch == 0 || g.m == 0 || g.n == 0) return;
  if (g.row_sums) sum_columns(g.k, g.m, g.a.as<T>(), g.a_strides.col, g.a_strides.row, g.row_sums.as<T>());

  const auto one = [&](std::int64_t index) {
    GemmArgs one = g;
    std::int64_t a = 0, b = 0, c = 0;
    for (int d = g.batch_ndim; d-- > 0;) {
      const std::int64_t i = index % g.batch_sizes[d];
      index /= g.batch_sizes[d];
      a += i * g.a_batch[d], b += i * g.b_batch[d], c += i * g.c_batch[d];
    }
    one.a = g.a.as<T>() + a;
    one.b = g.b.as<T>() + b;
    one.c = g.c.as<T>() + c;
    if (g.aux) one.aux = g.aux.as<T>() + c;
    if constexpr (is_half<T>) {
      product_half<T>(context, one);
    } else {
      product_and_epilogue<T>(one);
    }
  };
  // If there are enough matrices, threads compute different matrices. Otherwise all threads work on one
  // matrix at a time.
  if (batch < 2 * compute_threads())
    for (std::int64_t i = 0; i < batch; ++i) one(i);
  else
    parallel_for(batch, std::max<std::int64_t>(65536 / std::max<std::int64_t>(g.m * g.n * g.k, 1), 1),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t i = begin; i < end; ++i) one(i);
                 });
}

[[maybe_unused]] const bool filled = for_types<float, double, Half, BFloat16>([]<class T> {
  gemm.set(DeviceType::cpu, dtype_of<T>, &gemm_kernel<T>);
  column_sum.set(DeviceType::cpu, dtype_of<T>, &column_sum_kernel<T>);
});

}  // namespace
}  // namespace tapestry::kernels::cpu
