#pragma once
// Contracts of the kernels that move rows by index: index_select and the gradients of operations that pick
// elements.
#include <cstdint>
#include <limits>

#include "tapestry/kernels/slot.h"
#include "tapestry/kernels/view.h"

namespace tapestry::kernels {

/// A kernel never follows an index that is out of range. It skips the index, leaves that part of the result
/// unspecified, and lowers `*first_bad` to the index's position. The cell holds kNoBadIndex before. Kernel
/// and host can both reach it: for a GPU it lies in page-locked memory. Null if the caller does not want to
/// know. The kernel always runs to its end and the caller decides when to look: at once on a CPU, when the
/// host next waits for the device on a GPU (autograd/ops/internal/bad_index.h).
inline constexpr std::int64_t kNoBadIndex = std::numeric_limits<std::int64_t>::max();

/// y[o, i, :] = x[o, index[i], :] with x (outer, rows, inner), y (outer, count, inner), both dense and of the
/// slot's dtype. index (count) is i64, each in [0, rows).
struct IndexSelectArgs {
  std::int64_t outer, rows, count, inner;
  ConstArray index, x;
  MutableArray y;
  std::int64_t* first_bad;
};
inline constinit Slot<IndexSelectArgs> index_select{"index_select"};

/// dx[o, index[i], :] += dy[o, i, :], in the order of i. Shapes are those of index_select. The slot's dtype
/// is dy's. dx has the same, but f32 for f16 and bf16.
struct IndexAddArgs {
  std::int64_t outer, rows, count, inner;
  ConstArray index, dy;
  MutableArray dx;
  std::int64_t* first_bad;
};
inline constinit Slot<IndexAddArgs> index_add{"index_add"};

/// dx[o, index[o, i], i] = g[o, i] and zero elsewhere, with dx (outer, n, inner), g and index (outer, inner).
/// The indices are i64. They come from a kernel and are in range.
struct ScatterArgs {
  std::int64_t outer, n, inner;
  ConstArray index, g;
  MutableArray dx;
};
inline constinit Slot<ScatterArgs> scatter{"scatter"};

}  // namespace tapestry::kernels
