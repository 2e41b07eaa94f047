#pragma once
// Contracts of the embedding kernels. For all slots in this file:
//   Shapes: weight is (rows, columns). There are `count` indices, and one row of `columns` per index.
//   Layout: all arrays are dense, except weight, which has any strides.
//   Dtypes: indices are i64 or i32. All other arrays have the slot's dtype, which is floating.
//   Accumulation: f32, or f64 for f64.
// A kernel skips an index that is out of range, and `embedding` reports it as ops/index.h describes.
#include "tapestry/kernels/ops/index.h"

namespace tapestry::kernels {

/// Computes out[i, :] = weight[indices[i], :].
struct EmbeddingArgs {
  std::int64_t count, rows, columns;
  std::int64_t row_stride, column_stride;  ///< strides of the weight in elements
  ConstArray weight, indices;
  MutableArray out;
  BadIndexCell first_bad;
};
inline constinit Slot<EmbeddingArgs> embedding{"embedding"};

/// Writes all of dweight. Row v is the sum of the rows grad[i, :] with indices[i] == v. The rows are added in
/// a fixed order, so the result is deterministic. Row `padding` is 0. If `padding` is -1, there is no such
/// row. With `accumulate`, the sums begin with the row's elements in dweight, and other rows stay as they
/// are.
struct EmbeddingBackwardArgs {
  std::int64_t count, rows, columns;
  ConstArray grad, indices;
  MutableArray dweight;
  std::int64_t padding;
  bool accumulate = false;
};
inline constinit Slot<EmbeddingBackwardArgs> embedding_backward{"embedding_backward"};

}  // namespace tapestry::kernels
