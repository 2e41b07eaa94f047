#pragma once
// The three bilinear maps of a convolution, in 1 to 3 dimensions. conv1d, conv2d and conv3d compute y from x;
// the transposed convolutions compute dx from dy. Each gradient of one map is another of them.
#include <utility>

#include "tapestry/core/tensor.h"

namespace tapestry::autograd {

/// One spatial dimension of a convolution. The element `o` of y is a sum over the elements o stride -
/// padding + t dilation of x, for all t < window; those outside x count as zero.
struct ConvAxis {
  std::int64_t in = 1, out = 1, window = 1, stride = 1, padding = 0, dilation = 1;
};

/// The shapes of a convolution: x is (N, C, in...), weight is (K, C / groups, window...), y is (N, K,
/// out...).
struct ConvGeometry {
  int dims = 2;  ///< number of spatial dimensions
  std::int64_t n = 0, c = 0, k = 0, groups = 1;
  /// Depth, height and width. The depth is unused if dims < 3, and the height is unused if dims < 2: a line
  /// is an image of one row.
  ConvAxis axes[3];
  bool channels_last = false;  ///< the layout of x and y; for dims = 2 only

  Shape x_sizes() const;
  Shape weight_sizes() const;
  Shape y_sizes() const;
  /// True if all products of x and weight are empty sums, or if there are none.
  bool nothing() const;
};

/// A bias (K) as (K, 1...), which broadcasts over a tensor with `dims` spatial dimensions.
Tensor per_channel(const Tensor& bias, int dims);
/// The dimensions of such a tensor without that of the channels.
Dims all_but_channels(int dims);

// The operands have the dtype, device and shapes that the geometry says, and any layout. Results have the
// layout of the geometry. Nothing is recorded. f16 and bf16 are rounded once, at the end.

/// y from x, weight and bias (or undefined). With `relu`, which needs 2 dimensions, negative elements are 0.
Tensor conv_forward(const ConvGeometry& g, const Tensor& x, const Tensor& weight, const Tensor& bias,
                    bool relu = false);
/// dx from dy and weight.
Tensor conv_input_gradient(const ConvGeometry& g, const Tensor& dy, const Tensor& weight);
/// dweight from dy and x if `weight` is true, and dbias from dy if `bias` is true; the others are undefined.
/// Without dweight, x may be undefined.
std::pair<Tensor, Tensor> conv_weight_gradient(const ConvGeometry& g, const Tensor& dy, const Tensor& x,
                                               bool weight, bool bias);

}  // namespace tapestry::autograd
