#pragma once
// Sampling of images and volumes at the points of a grid (Jaderberg et al. 2015).
#include "tapestry/core/tensor.h"

namespace tapestry {

enum class GridSampleMode {
  bilinear,  ///< trilinear for volumes
  nearest,   ///< the nearest pixel; of two at the same distance the one with the even index
  bicubic    ///< images only; cubic convolution with a = -0.75
};
enum class GridSamplePadding {
  zeros,      ///< pixels outside are 0
  border,     ///< pixels outside are those at the border
  reflection  ///< coordinates outside are reflected at the border
};

struct GridSampleParams {
  GridSampleMode mode = GridSampleMode::bilinear;
  GridSamplePadding padding_mode = GridSamplePadding::zeros;
  /// Whether -1 and 1 are the centres of the corner pixels instead of their outer edges.
  bool align_corners = false;
};

/// Returns x at the points of `grid`. Shapes: for images, x is (N, C, H, W), grid is (N, P, Q, 2), and the
/// result is (N, C, P, Q). For volumes, x is (N, C, D, H, W), grid is (N, O, P, Q, 3), and the result is (N,
/// C, O, P, Q). The last dimension of grid has the coordinates (column, row) or (column, row, plane), where
/// -1 is the first and 1 the last pixel. Both have the same floating dtype. A channels-last image gives a
/// channels-last result. A coordinate that is NaN is the first pixel with border and reflection as padding,
/// and so is an infinite one with reflection. With zeros, such points are outside a volume; samples of images
/// are 0 if nearest, and NaN otherwise, and so are all bicubic ones, as in PyTorch on CPUs. The gradient of x
/// adds its terms in a fixed order, so it is deterministic on all devices. Throws ValueError if shapes do not
/// fit.
Tensor grid_sample(const Tensor& x, const Tensor& grid, const GridSampleParams& params = {});

/// Returns the grid of an affine map for grid_sample. Shapes: theta is (N, 2, 3) and `size` is the (N, C, H,
/// W) of grid_sample's result, which gives (N, H, W, 2); or theta is (N, 3, 4), size is (N, C, D, H, W), and
/// the result is (N, D, H, W, 3). The point at (x, y) is theta * (x, y, 1).
Tensor affine_grid(const Tensor& theta, const Shape& size, bool align_corners = false);

}  // namespace tapestry
