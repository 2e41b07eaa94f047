#pragma once
// Contracts of the matrix products. For all slots in this file:
//   Dtypes: all arrays have the slot's dtype, which is floating.
//   Accumulation: f32, or f64 for f64. f16 and bf16 are rounded once, when the result is written.
#include "tapestry/kernels/slot.h"
#include "tapestry/kernels/view.h"

namespace tapestry::kernels {

/// The (row, column) strides of a matrix in elements. One of the two is 1. The other is at least the length
/// of the contiguous rows or columns. A transposed matrix needs no copy.
struct MatrixStrides {
  std::int64_t row = 0, col = 1;
  /// True if the rows, of `cols` elements each, are contiguous. False if the columns are. Strides of (1, 1)
  /// describe a single row in column-major order.
  bool row_major(std::int64_t cols) const { return col == 1 && row >= cols; }
};

/// The function that is applied to each element of C last. ops/functions.h defines the functions. A backward
/// epilogue multiplies C by the function's derivative at `aux`.
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

/// Computes C = A B, or C += A B if `accumulate` is set, for each matrix of a batch. Then it adds the bias to
/// each row. Then it applies the epilogue.
///   Shapes: A is (m, k), B is (k, n), C is (m, n), bias is (n).
///   Layout: the rows of C are contiguous. MatrixStrides describes A and B.
struct GemmArgs {
  std::int64_t m = 0, n = 0, k = 0;
  ConstArray a, b;
  MutableArray c;
  MatrixStrides a_strides, b_strides;
  std::int64_t c_row = 0;  ///< stride between rows of C, at least n
  ConstArray bias;         ///< may be null
  bool accumulate = false;
  Epilogue epilogue = Epilogue::none;
  /// An array with the layout of C that does not overlap C. A backward epilogue reads it. A forward epilogue
  /// stores the function's argument in it, unless it is null.
  MutableArray aux;
  /// If not null, the array row_sums (m) receives the sums over k of the rows of A. In the product that
  /// computes the gradient of a linear layer's weight they are the gradient of its bias. Only without a
  /// batch, and if n > 0.
  MutableArray row_sums;
  /// The sizes of the batch dimensions, and their strides in elements. Stride 0 uses the same A or B for
  /// several matrices. The matrices of C do not overlap.
  int batch_ndim = 0;
  std::int64_t batch_sizes[kMaxDims] = {};
  std::int64_t a_batch[kMaxDims] = {}, b_batch[kMaxDims] = {}, c_batch[kMaxDims] = {};
};
inline constinit Slot<GemmArgs> gemm{"gemm"};

/// Computes y[j] = sum over i of x[i, j]. The result does not depend on the number of threads.
///   Shapes: x is (rows, cols), y is (cols).
///   Layout: x and y are dense.
struct ColumnSumArgs {
  std::int64_t rows, cols;
  ConstArray x;
  MutableArray y;
};
inline constinit Slot<ColumnSumArgs> column_sum{"column_sum"};

}  // namespace tapestry::kernels
