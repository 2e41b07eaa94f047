#pragma once
// Resizing of images and volumes.
#include <initializer_list>
#include <optional>
#include <vector>

#include "tapestry/core/tensor.h"

namespace tapestry {

enum class InterpolateMode {
  nearest,        ///< the element at floor(o * scale), as in OpenCV
  nearest_exact,  ///< the element whose centre is nearest, as in Pillow and scikit-image
  linear,         ///< (N, C, L)
  bilinear,       ///< (N, C, H, W)
  trilinear,      ///< (N, C, D, H, W)
  bicubic,        ///< (N, C, H, W), cubic convolution with a = -0.75 (Keys 1981)
  area            ///< averages over windows, as by adaptive_avg_pool
};

/// One factor for all dimensions, or one for each.
struct ScaleFactor {
  std::vector<double> factors;
  ScaleFactor() = default;
  ScaleFactor(double all) : factors{all} {}                            // NOLINT: `.scale_factor = 2`
  ScaleFactor(std::initializer_list<double> each) : factors(each) {}   // NOLINT
  ScaleFactor(std::vector<double> each) : factors(std::move(each)) {}  // NOLINT
};

/// Give either `size` or `scale_factor`.
struct InterpolateParams {
  Shape size = {};  ///< of the result's spatial dimensions; one number stands for all of them
  ScaleFactor scale_factor = {};
  InterpolateMode mode = InterpolateMode::nearest;
  /// Whether the centres of the corner pixels are kept instead of the corners of the image. The default is
  /// false. Only for the linear modes and bicubic; the others throw if it is given.
  std::optional<bool> align_corners = {};
  /// Whether the scale is recomputed from the sizes, which are rounded down, instead of being scale_factor.
  bool recompute_scale_factor = false;
  /// Whether bilinear and bicubic filters become wider when the image shrinks, so that all pixels count. The
  /// bicubic filter then has a = -0.5, as in Pillow.
  bool antialias = false;
};

/// Resizes the spatial dimensions of x: (N, C, L), (N, C, H, W) or (N, C, D, H, W). A size of the result is
/// floor(size * scale_factor). A channels-last image gives a channels-last result. Takes floating dtypes.
/// Gradients are sums in a fixed order, so they are deterministic on all devices. Throws ValueError if the
/// mode does not fit the number of dimensions, and for options that do not fit.
Tensor interpolate(const Tensor& x, const InterpolateParams& params);

}  // namespace tapestry
