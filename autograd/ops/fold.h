#pragma once
// Sliding windows of images as columns and back, and exchanges of channels with pixels.
#include "tapestry/autograd/ops/conv.h"
#include "tapestry/core/tensor.h"

namespace tapestry {

/// Windows of kernel_size that slide over an image with `padding` zeros on each side. Neighbours in a window
/// are `dilation` pixels apart.
struct FoldParams {
  Pair kernel_size;
  Pair dilation = 1, padding = 0, stride = 1;
};

/// Copies every window of x, shape (N, C, H, W) or (C, H, W), to a column of the result, shape (N, C R S, L)
/// or (C R S, L). The window is (R, S), and L is the number of windows. nn::functional::unfold is another
/// name.
Tensor im2col(const Tensor& x, const FoldParams& params);
/// Adds the columns of x, shape (N, C R S, L) or (C R S, L), at their windows of an image of output_size. The
/// result is (N, C, H, W) or (C, H, W). It is the gradient of im2col. nn::functional::fold is another name.
Tensor col2im(const Tensor& x, Pair output_size, const FoldParams& params);

/// Rearranges (..., C r r, H, W) to (..., C, H r, W r), where r is upscale_factor (Shi et al. 2016).
Tensor pixel_shuffle(const Tensor& x, std::int64_t upscale_factor);
/// The inverse of pixel_shuffle: rearranges (..., C, H r, W r) to (..., C r r, H, W).
Tensor pixel_unshuffle(const Tensor& x, std::int64_t downscale_factor);

}  // namespace tapestry
