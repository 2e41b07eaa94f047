#pragma once
// Contracts of the kernels that copy and fill.
#include "tapestry/core/scalar.h"
#include "tapestry/kernels/slot.h"
#include "tapestry/kernels/view.h"

namespace tapestry::kernels {

/// out = x, converted. The slot's dtype is the output's. x may have any dtype. A real number is truncated to
/// an integer, and every number but 0 becomes true. The operands do not overlap. The device type must be able
/// to read and write both: all logical CPUs share their memory.
inline constinit Slot<Elementwise<2>> copy{"copy"};

/// out = value, converted. All dtypes.
struct FillArgs {
  Elementwise<1> out;
  Scalar value;
};
inline constinit Slot<FillArgs> fill{"fill"};

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
