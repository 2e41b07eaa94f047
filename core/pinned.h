#pragma once
// Host memory that GPUs copy from and to by themselves, while the host goes on.
#include "tapestry/core/stream.h"
#include "tapestry/core/tensor.h"

namespace tapestry {

/// Uninitialised dense memory of cpu:0, page-locked and cached for the next one. Plain memory where there is
/// no CUDA device. Freed while a copy_async uses it, it is reused when that is done. Throws OutOfMemoryError.
Tensor empty_pinned(const Shape& sizes, DType dtype = DType::f32);
bool is_pinned(const Tensor& t);

/// Copies x's elements into `out` on `stream`, without waiting: the host goes on, if host memory is pinned.
/// Equal dtypes, sizes and strides, dense; on the stream's device or on the host, or both on CUDA devices,
/// one of them the stream's. Orders nothing: what makes x, and what uses `out` before and after, is for the
/// caller to order with events; but neither's memory is reused before the copy is done. Not recorded by the
/// tape. Throws ValueError, TypeError or DeviceError for what does not fit.
void copy_async(const Tensor& out, const Tensor& x, const Stream& stream);

}  // namespace tapestry
