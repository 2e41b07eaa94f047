#pragma once
// Contracts of the kernels that copy and fill.
#include "tapestry/core/scalar.h"
#include "tapestry/kernels/slot.h"
#include "tapestry/kernels/view.h"

namespace tapestry::kernels {

/// Computes out = x and converts the elements. The slot's dtype is that of the output. x may have any dtype,
/// except that CUDA kernels convert the dtypes that are only stored (i16, i8, u16) from and to i32 alone.
/// A real number is truncated to an integer. Every number except 0 becomes true. The operands do not overlap.
/// A device of the slot's type must be able to access both operands. Logical CPU devices can, because they
/// share their memory. Strides of x may be negative: flip() reads x backwards.
inline constinit Slot<Elementwise<2>> copy{"copy"};

/// Sets every element of `out` to `value`, converted to the slot's dtype. Takes all dtypes.
struct FillArgs {
  Elementwise<1> out;
  Scalar value;
};
inline constinit Slot<FillArgs> fill{"fill"};

/// Copies dense arrays next to each other into the lines of a dense array: each line of `out` is that line of
/// the first piece, then that of the second, and so on. The slot is called with u8, because it copies bytes.
/// The pieces do not overlap `out`. `pieces` is in host memory, and is not used after the call.
struct JoinPiece {
  const void* data;
  std::int64_t bytes;  ///< of one line
};
struct JoinArgs {
  std::int64_t lines;
  const JoinPiece* pieces;
  std::int64_t count;
  void* out;
};
inline constinit Slot<JoinArgs> join{"join"};

/// Copies bytes between two devices. At least one of them is not a CPU, and the slot is called with that
/// device and u8.
struct TransferArgs {
  Device to;
  void* out;
  Device from;
  const void* x;
  std::size_t bytes;
};
inline constinit Slot<TransferArgs> transfer{"transfer"};

}  // namespace tapestry::kernels
