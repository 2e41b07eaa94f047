#pragma once
// Moving rows by index: index_select and the gradients of what picks elements.
#include <cstdint>
#include <limits>

#include "tapestry/kernels/slot.h"

namespace tapestry::kernels {

/// A kernel that reads indices never follows one that is out of range. It skips it (what it would have
/// produced is unspecified) and lowers `*first_bad`, a cell that holds kNoBadIndex before, to its position.
/// The cell lies where kernel and host reach it: in page-locked memory for a GPU. Null: nobody asks. So every
/// kernel runs to its end, and the caller decides when to look: at once on a CPU, when the host next waits
/// for the device on a GPU (autograd/ops/bad_index.h).
inline constexpr std::int64_t kNoBadIndex = std::numeric_limits<std::int64_t>::max();

/// x (outer, rows, inner), y (outer, count, inner), both dense; index (count) in [0, rows).
struct IndexRows {
  std::int64_t outer, rows, count, inner;
  const std::int64_t* index;
  std::int64_t* first_bad;
};

/// y[o, i, :] = x[o, index[i], :]. Slot by x's dtype, which is y's.
inline constinit Slot<void(const IndexRows&, const void* x, void* y)> index_select{"index_select"};

/// dx[o, index[i], :] += dy[o, i, :], in the order of i. Slot by dy's dtype; dx has it too, but f32 for f16
/// and bf16.
inline constinit Slot<void(const IndexRows&, const void* dy, void* dx)> index_add{"index_add"};

/// dx (outer, n, inner) from g (outer, inner): dx[o, index[o, i], i] = g[o, i], zero elsewhere. Slot by the
/// dtype. The indices come from a kernel and are in range.
struct Scatter {
  std::int64_t outer, n, inner;
  const std::int64_t* index;  // (outer, inner)
};
inline constinit Slot<void(const Scatter&, const void* g, void* dx)> scatter{"scatter"};

}  // namespace tapestry::kernels
