#pragma once
// Contracts of the matrix products.
#include "tapestry/kernels/slot.h"
#include "tapestry/kernels/view.h"

namespace tapestry::kernels {

/// A matrix in memory, as (row, column) strides in elements. One of the two is 1. The other is at least the
/// length of the lines along the first one. A transposed matrix needs no copy.
struct MatrixStrides {
  std::int64_t row = 0, col = 1;
  /// True if the rows of `cols` elements are the dense lines, false if the columns are. (1, 1) describes a
  /// single row in column-major order.
  bool row_major(std::int64_t cols) const { return col == 1 && row >= cols; }
};

/// The last step for each element of C. Functions are those of ops/functions.h. A backward epilogue
/// multiplies C by the function's derivative at `aux`.
enum class Epilogue : std::uint8_t {
  none,
  relu,
  gelu,
  gelu_tanh,
  relu_backward,  // aux may be relu's input or its output
  gelu_backward,
  gelu_tanh_backward,
};
inline constexpr bool is_gradient(Epilogue e) { return e >= Epilogue::relu_backward; }

/// C = A B, or C += A B, for each matrix of a batch; then the bias is added to each row; then comes the
/// epilogue. A is (m, k), B (k, n), C (m, n) with dense rows. Products are accumulated in f32, or in f64 for
/// f64. f16 and bf16 are rounded once, when C is written.
struct GemmArgs {
  std::int64_t m = 0, n = 0, k = 0;
  ConstArray a, b;
  MutableArray c;
  MatrixStrides a_strides, b_strides;
  std::int64_t c_row = 0;  ///< at least n
  ConstArray bias;         ///< (n) or null
  bool accumulate = false;
  Epilogue epilogue = Epilogue::none;
  /// An array laid out like C, but not C itself. A backward epilogue reads it. A function stores its argument
  /// in it unless it is null.
  MutableArray aux;
  /// The batch: sizes, and strides in elements. Stride 0 uses the same A or B for several matrices. The
  /// matrices of C do not overlap.
  int batch_ndim = 0;
  std::int64_t batch_sizes[kMaxDims] = {};
  std::int64_t a_batch[kMaxDims] = {}, b_batch[kMaxDims] = {}, c_batch[kMaxDims] = {};
};
inline constinit Slot<GemmArgs> gemm{"gemm"};

/// y[j] = sum over i of x[i, j] for a dense x (rows, cols). Accumulated in f32 (f64 for f64), in an order
/// that does not depend on the number of threads.
struct ColumnSumArgs {
  std::int64_t rows, cols;
  ConstArray x;
  MutableArray y;
};
inline constinit Slot<ColumnSumArgs> column_sum{"column_sum"};

}  // namespace tapestry::kernels
