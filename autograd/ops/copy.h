#pragma once
// Copies of tensors: in the same layout, in another memory format, and to another device or dtype.
#include "tapestry/core/tensor.h"

namespace tapestry {

/// Returns a copy with the same layout.
Tensor clone(const Tensor& x);
/// Returns x itself if it has this format, else a dense copy. A tensor that is dense in both formats, such as
/// an image with one channel, is not copied: the result is a view whose strides say the format.
Tensor contiguous(const Tensor& x, MemoryFormat format = MemoryFormat::contiguous);
/// Returns x itself if nothing changes, else a copy. Gradients pass between devices and floating dtypes.
Tensor to(const Tensor& x, Device device, DType dtype);

}  // namespace tapestry
