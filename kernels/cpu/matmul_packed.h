#pragma once
// The tiles of products with a packed factor, for each instruction set.
#include <cstdint>

#include "tapestry/core/half.h"
#include "tapestry/kernels/ops/matmul_packed.h"

namespace tapestry::kernels::cpu {

/// Adds the product of some rows of a and one panel of b to `sums`, which has kPanelColumns columns. The rows
/// of a are a_row elements apart, those of `sums` sums_row.
using PackedTile = void (*)(std::int64_t k, const void* a, std::int64_t a_row, const void* panel, float* sums,
                            std::int64_t sums_row);

inline constexpr int kMostTileRows = 14;

/// tile[r - 1] is for r rows. If all are null, AMX's tiles compute the products.
struct PackedTiles {
  int most_rows;
  PackedTile tile[kMostTileRows];
  /// a and b are bf16, and a panel has pairs of rows of b: elements (2 i, j) and (2 i + 1, j) are neighbours.
  /// Otherwise both are f32, and a panel has the rows of b one after the other.
  bool pairs;
};

/// The tiles that use AVX-512, for f32 and for bf16, whose tiles may be those for f32. Null where the
/// processor cannot run them.
const PackedTiles* wide_packed_tiles(bool bf16);

/// Writes one panel of pairs: `columns` columns, at most kPanelColumns, of a matrix b with k rows. The
/// missing columns, and the missing row if k is odd, become 0.
void pack_pairs(std::int64_t k, std::int64_t columns, const BFloat16* b, MatrixStrides strides, BFloat16* to);

}  // namespace tapestry::kernels::cpu
