#pragma once
// Contract of the kernel that reduces rows of an embedding bag by bag.
//   Shapes: weight is (rows, columns). There are `count` indices in `bags` bags. Bag b has the indices
//     [offsets[b], offsets[b + 1]); the last one ends at `count` unless offsets has bags + 1 elements
//     (`has_end`). Without offsets, each bag has `per_bag` indices.
//   Layout: all arrays are dense, except weight, which has any strides.
//   Dtypes: indices, offsets, bag_of, sizes and chosen are i64. All other arrays have the slot's dtype, which
//     is floating.
//   Accumulation: f32, or f64 for f64, in order of the indices.
// A kernel skips an index that is out of range and reports it as ops/index.h describes. In the same way it
// reports in `first_bad_offset` an offset that is less than the one before it, that is greater than `count`,
// that is not 0 as the first one, or that is not `count` as the one of has_end.
#include "tapestry/kernels/ops/index.h"

namespace tapestry::kernels {

enum class BagMode : std::uint8_t { sum, mean, max };

/// Computes out (bags, columns). Indices equal to `padding` are left out; -1 is no padding. An empty bag
/// gives 0.
struct EmbeddingBagArgs {
  BagMode mode;
  std::int64_t count, rows, columns, bags, per_bag;
  std::int64_t row_stride, column_stride;  ///< strides of the weight in elements
  std::int64_t padding;
  bool has_end;
  ConstArray weight, indices, offsets;
  ConstArray scales;  ///< (count), factors of the rows; null stands for ones. Only for sum.
  MutableArray out;
  MutableArray bag_of;  ///< (count), the bag of each index; may be null
  MutableArray sizes;   ///< (bags), the number of indices that are not left out; may be null
  MutableArray chosen;  ///< (bags, columns) for max: the row of the first maximum, 0 if empty; may be null
  BadIndexCell first_bad, first_bad_offset;
};
inline constinit Slot<EmbeddingBagArgs> embedding_bag{"embedding_bag"};

}  // namespace tapestry::kernels
