#pragma once
// IDX is the file format of MNIST: the bytes 0, 0, type and ndim, then big-endian sizes, then big-endian
// elements.
#include <string>

#include "tapestry/core/tensor.h"

namespace tapestry::data {

/// Reads the tensor of an IDX file, gzipped or not. Unsigned bytes become u8; signed bytes and 16-bit
/// integers become i32; i32 and floating-point types keep their dtype. Throws IoError if the file is missing,
/// is not IDX, or is shorter or longer than its header says. It checks that the file can hold all elements
/// before it allocates memory for them.
Tensor read_idx(const std::string& path);

}  // namespace tapestry::data
