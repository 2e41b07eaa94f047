#pragma once
// IDX, the format of MNIST and its kin: bytes 0 0 type ndim, big-endian sizes, then big-endian elements.
#include <string>

#include "tapestry/core/tensor.h"

namespace tapestry::data {

/// The tensor in an IDX file, gzipped or not. Bytes become u8, i32 and floating types stay what they are,
/// signed bytes and 16-bit integers become i32. Throws IoError for a file that is missing, cut off, longer or
/// shorter than its header says, or not IDX; never allocates more than the file could hold.
Tensor read_idx(const std::string& path);

}  // namespace tapestry::data
