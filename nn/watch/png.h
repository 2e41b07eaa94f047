#pragma once
// Pictures of tensors.
#include <string>

#include "tapestry/core/tensor.h"

namespace tapestry::watch {

/// Returns the image as a PNG file. Shapes: (H, W) or (C, H, W), where C is 1 (grey), 2 (grey and alpha), 3
/// (RGB) or 4 (RGBA). u8 elements are used as they are; floating elements are clamped to [0, 1], and NaN is
/// black. Throws ValueError for other shapes and for empty images, and TypeError for other dtypes.
std::string encode_png(const Tensor& image);

/// Arranges images (N, C, H, W) in rows of `columns` images, with `padding` black pixels between them, and
/// returns (C, H', W'). 0 columns make the grid about square.
Tensor image_grid(const Tensor& images, std::int64_t columns = 0, std::int64_t padding = 2);

}  // namespace tapestry::watch
