#pragma once
// Contracts of the kernels that move rows by index: index_select and the gradients of operations that pick
// elements.
#include <cstdint>
#include <limits>

#include "tapestry/kernels/slot.h"
#include "tapestry/kernels/view.h"

namespace tapestry::kernels {

/// The value of a cell `*first_bad` in which no kernel has reported an index. A kernel skips an index that is
/// out of range, leaves its part of the result unspecified, and lowers `*first_bad` to the index's position.
/// Kernel and host can both access the cell: for a GPU it lies in page-locked memory. first_bad may be null,
/// and then nothing is reported. The kernel always runs to its end. The caller decides when to read the cell
/// (autograd/ops/internal/bad_index.h): at once on a CPU, or when the host next waits for the GPU.
inline constexpr std::int64_t kNoBadIndex = std::numeric_limits<std::int64_t>::max();

/// Computes y[o, i, :] = x[o, index[i], :].
///   Shapes: x is (outer, rows, inner), y is (outer, count, inner), index is (count).
///   Layout: all arrays are dense.
///   Dtypes: x and y have the slot's dtype. index is i64, and valid indices are in [0, rows).
struct IndexSelectArgs {
  std::int64_t outer, rows, count, inner;
  ConstArray index, x;
  MutableArray y;
  std::int64_t* first_bad;
};
inline constinit Slot<IndexSelectArgs> index_select{"index_select"};

/// Computes dx[o, index[i], :] += dy[o, i, :], in the order of i.
///   Shapes and layout: dx is like x of index_select, dy is like y.
///   Dtypes: dy has the slot's dtype. dx is f32 if dy is f16 or bf16, and has dy's dtype otherwise.
struct IndexAddArgs {
  std::int64_t outer, rows, count, inner;
  ConstArray index, dy;
  MutableArray dx;
  std::int64_t* first_bad;
};
inline constinit Slot<IndexAddArgs> index_add{"index_add"};

/// Sets dx[o, index[o, i], i] = g[o, i], and all other elements of dx to 0.
///   Shapes: dx is (outer, n, inner), g and index are (outer, inner).
///   Layout: all arrays are dense.
///   Dtypes: dx and g have the slot's dtype. index is i64. Its values come from a kernel and are in range.
struct ScatterArgs {
  std::int64_t outer, n, inner;
  ConstArray index, g;
  MutableArray dx;
};
inline constinit Slot<ScatterArgs> scatter{"scatter"};

}  // namespace tapestry::kernels
