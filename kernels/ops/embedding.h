#pragma once
// Contracts of the embedding kernels. Indices are i64 or i32 and dense. A kernel skips an index out of range
// and reports it as ops/index.h says. Slots go by the dtype of the weight, which is floating.
#include "tapestry/kernels/ops/index.h"

namespace tapestry::kernels {

/// out (count, columns) dense = the rows of weight (rows, columns) that the `count` indices name. The weight
/// may have any strides.
struct EmbeddingArgs {
  std::int64_t count, rows, columns;
  std::int64_t row_stride, column_stride;  ///< of the weight, in elements
  ConstArray weight, indices;
  MutableArray out;
  std::int64_t* first_bad;
};
inline constinit Slot<EmbeddingArgs> embedding{"embedding"};

/// Writes all of dweight (rows, columns), dense. Row v is the sum of the rows of grad (count, columns),
/// dense, whose index is v, in order of position, so that the result always has the same bits. Sums of f16
/// and bf16 are taken in f32. Row `padding` is 0; -1 means that there is no such row.
struct EmbeddingBackwardArgs {
  std::int64_t count, rows, columns;
  ConstArray grad, indices;
  MutableArray dweight;
  std::int64_t padding;
};
inline constinit Slot<EmbeddingBackwardArgs> embedding_backward{"embedding_backward"};

}  // namespace tapestry::kernels
