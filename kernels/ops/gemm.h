#pragma once
// Contracts of the matrix products.
#include "tapestry/kernels/slot.h"
#include "tapestry/kernels/view.h"

namespace tapestry::kernels {

/// A matrix in memory, as (row, column) strides in elements: one of the two is 1, the other at least the
/// length of what the first one runs along. So a transposed matrix is read where it is.
struct MatrixStrides {
  std::int64_t row = 0, col = 1;
  /// Whether the rows of `cols` elements are the dense lines, not the columns. (1, 1) is a column-major row.
  bool row_major(std::int64_t cols) const { return col == 1 && row >= cols; }
};

/// What becomes of each element of C last. The functions are those of ops/elementwise.h; a gradient is C
/// times the function's derivative at `aux`.
enum class Epilogue : std::uint8_t {
  none,
  relu,
  gelu,
  gelu_tanh,
  relu_backward,  // aux may be what went into relu or what came out
  gelu_backward,
  gelu_tanh_backward,
};
inline constexpr bool is_gradient(Epilogue e) { return e >= Epilogue::relu_backward; }

/// C = A B, or C += A B, for each matrix of a batch, then + bias in each row, then the epilogue. A is (m, k),
/// B (k, n), C (m, n) with dense rows. Products are accumulated in f32, for f64 in f64; f16 and bf16 are
/// rounded once, when C is written.
struct Gemm {
  std::int64_t m = 0, n = 0, k = 0;
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  MatrixStrides a_strides, b_strides;
  std::int64_t c_row = 0;      ///< at least n
  const void* bias = nullptr;  ///< (n) or null
  bool accumulate = false;
  Epilogue epilogue = Epilogue::none;
  /// Laid out as C, but not C: what a gradient reads; where a function writes what it is applied to, if not
  /// null.
  void* aux = nullptr;
  /// The batch: sizes, and strides in elements. A or B that serves several matrices has stride 0; those of C
  /// do not overlap.
  int batch_ndim = 0;
  std::int64_t batch_sizes[kMaxDims] = {};
  std::int64_t a_batch[kMaxDims] = {}, b_batch[kMaxDims] = {}, c_batch[kMaxDims] = {};
  Device device;  ///< where a kernel takes its workspace
};
inline constinit Slot<void(const Gemm&)> gemm{"gemm"};

/// y[j] = sum over i of x[i, j]: x (rows, cols), dense. Accumulated in f32 (f64 for f64), in an order that
/// does not depend on the number of threads.
inline constinit Slot<void(std::int64_t rows, std::int64_t cols, const void* x, void* y)> column_sum{
    "column_sum"};

}  // namespace tapestry::kernels
