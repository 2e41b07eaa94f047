#pragma once
// Pinned (page-locked) host memory, and copies that run asynchronously to the host.
#include "tapestry/core/stream.h"
#include "tapestry/core/tensor.h"

namespace tapestry {

/// An uninitialised dense tensor on cpu:0 in pinned memory, or in ordinary memory if there is no CUDA device.
/// Freed pinned memory is cached. If the tensor is destroyed while a copy_async() uses its memory, the memory
/// is reused only after the copy. Throws OutOfMemoryError, or ValueError for invalid sizes.
Tensor empty_pinned(const Shape& sizes, DType dtype = DType::f32);
/// True if `t` is a CPU tensor in memory that empty_pinned() has pinned.
bool is_pinned(const Tensor& t);

/// Copies the elements of x to `out` on `stream`. Asynchronous to the host if the host memory is pinned.
/// `x` and `out` have the same dtype and sizes and the same dense layout. `stream` belongs to a CUDA device
/// that takes part in the copy: to the device of x if both are CUDA tensors. The caller orders the copy with
/// the producer of x and the users of `out` by events. The memory of both tensors is not reused before the
/// copy has completed. The tape does not record the copy. Throws ValueError, TypeError or DeviceError if
/// these conditions do not hold.
void copy_async(const Tensor& out, const Tensor& x, const Stream& stream);

}  // namespace tapestry
