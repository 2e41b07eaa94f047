#pragma once
// Contracts of the kernels that read, write and combine elements by index, and of those that find the
// elements of a mask.
#include <cstdint>
#include <limits>

#include "tapestry/core/internal/call_cell.h"
#include "tapestry/core/shape.h"
#include "tapestry/kernels/slot.h"
#include "tapestry/kernels/view.h"

namespace tapestry::kernels {

/// The value of a cell in which no kernel has reported an index.
inline constexpr std::int64_t kNoBadIndex = std::numeric_limits<std::int64_t>::max();

/// Where a kernel reports an index that is out of range. It skips such an index, leaves the index's part of
/// the result unspecified, and lowers `*cell` to value(position of the index). The kernel always runs to its
/// end. The caller decides when to read the cell: at once on a CPU, or when the host next waits for the GPU.
/// All calls on a GPU share one cell in page-locked memory, which both sides can access, and `call` tells
/// them apart (core/internal/deferred_check.h). If `cell` is null, nothing is reported.
struct BadIndexCell {
  std::int64_t* cell;
  std::int32_t call;

  BadIndexCell() = default;
  BadIndexCell(std::int64_t* to, std::int32_t number = 0) : cell(to), call(number) {}  // NOLINT
  constexpr std::int64_t value(std::int64_t position) const {
    return call * tapestry::detail::kPositionsOfCall + position;
  }
};

/// Computes y[o, i, :] = x[o, index[i], :].
///   Shapes: x is (outer, rows, inner), y is (outer, count, inner), index is (count).
///   Layout: all arrays are dense.
///   Dtypes: x and y have the slot's dtype. index is i64, and valid indices are in [0, rows).
struct IndexSelectArgs {
  std::int64_t outer, rows, count, inner;
  ConstArray index, x;
  MutableArray y;
  BadIndexCell first_bad;
};
inline constinit Slot<IndexSelectArgs> index_select{"index_select"};

/// Computes dx[o, index[i], :] += dy[o, i, :], in an order that only depends on the indices.
///   Shapes and layout: dx is like x of index_select, dy is like y.
///   Dtypes: dy has the slot's dtype. dx is f32 if dy is f16 or bf16, and has dy's dtype otherwise.
struct IndexAddArgs {
  std::int64_t outer, rows, count, inner;
  ConstArray index, dy;
  MutableArray dx;
  BadIndexCell first_bad;
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

/// Maps the elements of an array y to elements of an array x. The loop dimensions are those of y. Along a
/// dimension, an element of x is found either by its own coordinate or by index arrays:
///   x offset = sum over d of coordinate[d] * x_strides[d]  +  sum over k of value of index[k] * its
///   x_stride.
/// Examples: for gather along dimension 0 of a matrix, there is one index array, x_strides is (0, 1), and the
/// index array's x_stride is the number of columns.
struct Indexed {
  /// An array of i64 indices into one dimension of x.
  struct Index {
    const std::int64_t* values;
    std::int64_t strides[kMaxDims];  ///< 0 along the loop dimensions that it does not depend on
    std::int64_t size, x_stride;     ///< of the dimension of x; valid indices are in [0, size)
  };
  int ndim;    ///< at least 1
  int count;   ///< number of index arrays, at least 1
  bool wraps;  ///< indices in [-size, 0) are valid too and count from the end
  /// The index arrays depend on loop dimensions first to end - 1 only. The positions that the kernel reports
  /// are numbered row-major in these dimensions.
  int first, end;
  std::int64_t sizes[kMaxDims];                           ///< of the loop dimensions; no size is 0
  std::int64_t x_strides[kMaxDims], y_strides[kMaxDims];  ///< in elements
  Index index[kMaxDims];
  BadIndexCell first_bad;
};

/// Computes y = x at the indexed elements. The slot's dtype, of any type, is that of x and y. Elements of y
/// whose index is invalid are unspecified.
struct IndexedReadArgs {
  Indexed at;
  ConstArray x;
  MutableArray y;
};
inline constinit Slot<IndexedReadArgs> indexed_read{"indexed_read"};

/// Computes x = y at the indexed elements. The slot's dtype, of any type, is that of x and y. If several
/// elements of y belong to one element of x, the last of them (in row-major order) is written. No two
/// coordinates address the same element of x, except through index arrays. `unique` promises that the index
/// arrays address no element twice either.
struct IndexedWriteArgs {
  Indexed at;
  bool unique;
  MutableArray x;
  ConstArray y;
};
inline constinit Slot<IndexedWriteArgs> indexed_write{"indexed_write"};

/// Computes x = x (op) y at the indexed elements. Elements of y that belong to the same element of x are
/// combined with it one after another in row-major order. The CUDA kernels combine more than 32 of them in
/// chunks of 32, counted from the first, and then the results of the chunks in order. Both orders depend on
/// the indices alone, so results are deterministic.
///   Dtypes: y has the slot's dtype. x is f32 if y is f16 or bf16, and has y's dtype otherwise.
///   Strides: as for indexed_write.
///   Integers wrap around. maximum and minimum give NaN if an operand is NaN.
enum class Combine : std::uint8_t { sum, product, maximum, minimum };
struct IndexedCombineArgs {
  Indexed at;
  Combine op;
  MutableArray x;
  ConstArray y;
};
inline constinit Slot<IndexedCombineArgs> indexed_combine{"indexed_combine"};

/// The number of elements that the kernels below count at a time.
inline constexpr std::int64_t kMaskBlock = 1024;

/// Counts the true elements of a dense mask. starts[b] is the number of true elements before block b. The
/// last element of starts, which has one element more than there are blocks, is the number of all true
/// elements. The slot's dtype is bool. starts is i64.
struct MaskStartsArgs {
  std::int64_t n;
  ConstArray mask;
  MutableArray starts;
};
inline constinit Slot<MaskStartsArgs> mask_starts{"mask_starts"};

/// Writes the coordinates of the true elements of a dense row-major mask of shape `sizes`, in row-major
/// order. coordinates[i, d] is element i * element_stride + d * dim_stride. `starts` comes from mask_starts.
/// The slot's dtype is bool. coordinates is i64.
struct MaskCoordinatesArgs {
  std::int64_t n;
  int ndim;
  std::int64_t sizes[kMaxDims];
  ConstArray mask, starts;
  MutableArray coordinates;
  std::int64_t element_stride, dim_stride;
};
inline constinit Slot<MaskCoordinatesArgs> mask_coordinates{"mask_coordinates"};

}  // namespace tapestry::kernels
