#include "tapestry/kernels/cpu/gemm.h"

#include "tapestry/core/dtype.h"
#include "tapestry/core/error.h"
#include "tapestry/kernels/cpu/compute.h"
#include "tapestry/kernels/ops/elementwise.h"

#ifdef TAPESTRY_HAS_ONEDNN
#include <oneapi/dnnl/dnnl.hpp>
#endif

namespace tapestry::kernels::cpu {

template <>
void multiply<double>(const Gemm& g) {
  multiply_eigen<double>(g);
}

template <>
void multiply<float>(const Gemm& g) {
#ifdef TAPESTRY_HAS_ONEDNN
  compute_threads();  // tells OpenMP, and so oneDNN, how many threads this thread has
  const bool a_plain = g.a_strides.row_major(g.k), b_plain = g.b_strides.row_major(g.n);
  const auto status = dnnl_sgemm(a_plain ? 'N' : 'T', b_plain ? 'N' : 'T', g.m, g.n, g.k, 1.0f,
                                 static_cast<const float*>(g.a), a_plain ? g.a_strides.row : g.a_strides.col,
                                 static_cast<const float*>(g.b), b_plain ? g.b_strides.row : g.b_strides.col,
                                 g.accumulate ? 1.0f : 0.0f, static_cast<float*>(g.c), g.c_row);
  check<Error>(status == dnnl_success, "[gemm] oneDNN failed with status ", static_cast<int>(status),
               " for (", g.m, ", ", g.k, ") x (", g.k, ", ", g.n, ")");
#else
  multiply_eigen<float>(g);
#endif
}

namespace {

template <class T>
void fill_rows(const Gemm& g) {
  T* c = static_cast<T*>(g.c);
  const T* bias = static_cast<const T*>(g.bias);
  for (std::int64_t i = 0; i < g.m; ++i)
    if (bias) std::copy_n(bias, g.n, c + i * g.c_row);
    else std::fill_n(c + i * g.c_row, g.n, T(0));
}
template <class T>
void add_bias(const Gemm& g) {
  T* c = static_cast<T*>(g.c);
  const T* bias = static_cast<const T*>(g.bias);
  for (std::int64_t i = 0; i < g.m; ++i)
    for (std::int64_t j = 0; j < g.n; ++j) c[i * g.c_row + j] += bias[j];
}

// C and aux as operands of elementwise kernels.
template <int N>
Elementwise<N> over_c(const Gemm& g, DType dtype, void* const (&operands)[N]) {
  Elementwise<N> e;
  e.ndim = 2;
  e.numel = g.m * g.n;
  e.sizes[0] = g.m, e.sizes[1] = g.n;
  for (int i = 0; i < N; ++i) {
    e.strides[i][0] = g.c_row, e.strides[i][1] = 1;
    e.data[i] = operands[i];
    e.dtypes[i] = dtype;
  }
  return e;
}
template <class T>
void finish(const Gemm& g) {
  constexpr DType dtype = dtype_of<T>;
  const auto function = [&](const UnarySlot& f) {
    if (g.aux)
      for (std::int64_t i = 0; i < g.m; ++i)
        std::copy_n(static_cast<const T*>(g.c) + i * g.c_row, g.n, static_cast<T*>(g.aux) + i * g.c_row);
    f(kCPU, dtype, over_c<2>(g, dtype, {g.c, g.c}));
  };
  const auto gradient = [&](const BinarySlot& f) { f(kCPU, dtype, over_c<3>(g, dtype, {g.c, g.c, g.aux})); };
  switch (g.epilogue) {
    case Epilogue::none:
      return;
    case Epilogue::relu:
      return function(relu);
    case Epilogue::gelu:
      return function(gelu);
    case Epilogue::gelu_tanh:
      return function(gelu_tanh);
    case Epilogue::relu_backward:
      return gradient(relu_backward);
    case Epilogue::gelu_backward:
      return gradient(gelu_backward);
    case Epilogue::gelu_tanh_backward:
      return gradient(gelu_tanh_backward);
  }
}

// One matrix, in f32 or f64.
template <class T>
void product(Gemm g) {
  if (g.k == 0) {
    if (!g.accumulate) fill_rows<T>(g);
    else if (g.bias) add_bias<T>(g);
    return;
  }
  if (g.bias) {
    // The sum starts from the bias: cheaper than another pass over C.
    if (g.accumulate) add_bias<T>(g);
    else fill_rows<T>(g);
    g.accumulate = true;
  }
  multiply<T>(g);
}

template <class T>
const float* widen(const T* x, float* y, std::int64_t rows, std::int64_t cols, MatrixStrides& s) {
  const bool plain = s.row_major(cols);
  const std::int64_t lines = plain ? rows : cols, length = plain ? cols : rows;
  parallel_for(lines, grain_of(length),
               [=, from = plain ? s.row : s.col](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t i = begin; i < end; ++i) to_float(x + i * from, y + i * length, length);
               });
  // Columns of length 1 lie side by side now: a row.
  if (plain || length == 1) s = {std::max<std::int64_t>(cols, 1), 1};
  else s = {1, std::max<std::int64_t>(rows, 1)};
  return y;
}

// One matrix of f16 or bf16, in f32.
template <class T>
void product_half(Gemm g) {
  const Scratch<float> memory(g.device, g.m * g.k + g.k * g.n + g.m * g.n + g.n);
  float* const a = memory.data();
  float* const b = a + g.m * g.k;
  float* const c = b + g.k * g.n;
  float* const bias = c + g.m * g.n;
  g.a = widen(static_cast<const T*>(g.a), a, g.m, g.k, g.a_strides);
  g.b = widen(static_cast<const T*>(g.b), b, g.k, g.n, g.b_strides);
  if (g.bias) {
    to_float(static_cast<const T*>(g.bias), bias, g.n);
    g.bias = bias;
  }
  T* const out = static_cast<T*>(g.c);
  T* const out_aux = static_cast<T*>(g.aux);
  const std::int64_t out_row = g.c_row;
  const auto read = [&](const T* from, float* to) {
    MatrixStrides strides{out_row, 1};
    widen(from, to, g.m, g.n, strides);
  };
  const auto write = [&](const float* from, T* to) {
    for (std::int64_t i = 0; i < g.m; ++i) from_float(from + i * g.n, to + i * out_row, g.n);
  };
  if (g.accumulate) read(out, c);
  g.c = c, g.c_row = g.n;
  product<float>(g);
  Scratch<float> aux;
  if (out_aux) {
    aux = Scratch<float>(g.device, g.m * g.n);
    g.aux = aux.data();
    if (is_gradient(g.epilogue)) read(out_aux, aux.data());
  }
  finish<float>(g);
  write(c, out);
  if (out_aux && !is_gradient(g.epilogue) && g.epilogue != Epilogue::none) write(aux.data(), out_aux);
}

template <class T>
void gemm_kernel(const Gemm& g) {
  std::int64_t batch = 1;
  for (int d = 0; d < g.batch_ndim; ++d) batch *= g.batch_sizes[d];
  if (batch == 0 || g.m == 0 || g.n == 0) return;

  const auto one = [&](std::int64_t index) {
    Gemm one = g;
    std::int64_t a = 0, b = 0, c = 0;
    for (int d = g.batch_ndim; d-- > 0;) {
      const std::int64_t i = index % g.batch_sizes[d];
      index /= g.batch_sizes[d];
      a += i * g.a_batch[d], b += i * g.b_batch[d], c += i * g.c_batch[d];
    }
    one.a = static_cast<const T*>(g.a) + a;
    one.b = static_cast<const T*>(g.b) + b;
    one.c = static_cast<T*>(g.c) + c;
    if (g.aux) one.aux = static_cast<T*>(g.aux) + c;
    if constexpr (is_half<T>) {
      product_half<T>(one);
    } else {
      product<T>(one);
      finish<T>(one);
    }
  };
  // Matrices side by side where there are enough of them, else the threads share each one.
  if (batch < 2 * compute_threads())
    for (std::int64_t i = 0; i < batch; ++i) one(i);
  else
    parallel_for(batch, std::max<std::int64_t>(65536 / std::max<std::int64_t>(g.m * g.n * g.k, 1), 1),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t i = begin; i < end; ++i) one(i);
                 });
}

template <class T>
void column_sum_kernel(std::int64_t rows, std::int64_t cols, const void* x, void* y) {
  using C = Compute<T>;
  const T* const in = static_cast<const T*>(x);
  T* const out = static_cast<T*>(y);
  constexpr std::int64_t kBlock = 64;
  // Each thread sums columns of its own, from the first row to the last, in pieces of rows: f32 sums of
  // thousands of rows would lose digits.
  constexpr std::int64_t kRows = 128;
  parallel_for(cols, std::max(kBlock, grain_of(rows)), [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t j0 = begin; j0 < end; j0 += kBlock) {
      const std::int64_t n = std::min(kBlock, end - j0);
      C total[kBlock] = {};
      for (std::int64_t i0 = 0; i0 < rows; i0 += kRows) {
        C part[kBlock] = {};
        for (std::int64_t i = i0; i < std::min(rows, i0 + kRows); ++i)
          for (std::int64_t j = 0; j < n; ++j) part[j] += load(in[i * cols + j0 + j]);
        for (std::int64_t j = 0; j < n; ++j) total[j] += part[j];
      }
      for (std::int64_t j = 0; j < n; ++j) out[j0 + j] = T(total[j]);
    }
  });
}

[[maybe_unused]] const bool filled = for_types<float, double, Half, BFloat16>([]<class T> {
  gemm.set(DeviceType::cpu, dtype_of<T>, &gemm_kernel<T>);
  column_sum.set(DeviceType::cpu, dtype_of<T>, &column_sum_kernel<T>);
});

}  // namespace
}  // namespace tapestry::kernels::cpu
