#pragma once
// Contracts of the kernels that move elements.
#include "tapestry/kernels/slot.h"
#include "tapestry/kernels/view.h"

namespace tapestry::kernels {

/// out = x, converted. The slot's dtype is the output's; x has any dtype (args.dtypes[1]). Real to integer
/// truncates; anything but 0 becomes true. The operands do not overlap. Both lie in memory that the device
/// type reaches: all logical CPUs share theirs.
inline constinit Slot<void(const Elementwise<2>&)> copy{"copy"};
/// out = value, converted. All dtypes.
inline constinit Slot<void(const Elementwise<1>&, Scalar value)> fill{"fill"};
/// Copies `bytes` bytes between devices where one at least is no CPU; called with the device type that is
/// none, and u8.
inline constinit Slot<void(Device to, void* out, Device from, const void* x, std::size_t bytes)> transfer{
    "transfer"};

}  // namespace tapestry::kernels
