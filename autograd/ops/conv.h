#pragma once
// Convolutions and transposed convolutions.
#include <concepts>
#include <string_view>
#include <type_traits>

#include "tapestry/core/tensor.h"

namespace tapestry {

/// A pair (vertical, horizontal). One number sets both.
struct Pair {
  std::int64_t h = 0, w = 0;
  constexpr Pair() = default;
  constexpr Pair(std::int64_t both) : h(both), w(both) {}  // NOLINT
  constexpr Pair(std::int64_t vertical, std::int64_t horizontal) : h(vertical), w(horizontal) {}
  friend constexpr bool operator==(Pair, Pair) = default;
};

/// A triple (depth, vertical, horizontal). One number sets all three.
struct Triple {
  std::int64_t d = 0, h = 0, w = 0;
  constexpr Triple() = default;
  constexpr Triple(std::int64_t all) : d(all), h(all), w(all) {}  // NOLINT
  constexpr Triple(std::int64_t depth, std::int64_t vertical, std::int64_t horizontal)
      : d(depth), h(vertical), w(horizontal) {}
  friend constexpr bool operator==(Triple, Triple) = default;
};

/// One number per spatial dimension: a number, a Pair or a Triple.
template <int kDims>
using Extent = std::conditional_t<kDims == 1, std::int64_t, std::conditional_t<kDims == 2, Pair, Triple>>;

namespace detail {
/// True for "same", false for "valid". Throws ValueError for other names.
bool is_same_padding(std::string_view name);
}  // namespace detail

/// The padding of a convolution: the number of zeros on both sides of each dimension, or a name. "valid" is
/// 0. "same" gives the result the size of the input: dilation (kernel - 1) zeros, the first half of them in
/// front; if the number is odd, the end gets one more, and the input is copied. It needs stride 1.
template <int kDims>
struct ConvPadding {
  Extent<kDims> sides = 0;  ///< not used if `same` is set
  bool same = false;

  constexpr ConvPadding() = default;
  constexpr ConvPadding(Extent<kDims> numbers) : sides(numbers) {}  // NOLINT: `.padding = 1` reads well
  constexpr ConvPadding(std::int64_t all)                           // NOLINT
      requires(kDims > 1)
      : sides(all) {}
  constexpr ConvPadding(std::int64_t vertical, std::int64_t horizontal) requires(kDims == 2)
      : sides(vertical, horizontal) {}
  constexpr ConvPadding(std::int64_t depth, std::int64_t vertical,
                        std::int64_t horizontal) requires(kDims == 3)
      : sides(depth, vertical, horizontal) {}
  /// Throws ValueError unless the name is "same" or "valid".
  template <std::convertible_to<std::string_view> Name>
  ConvPadding(const Name& name) : same(detail::is_same_padding(name)) {}  // NOLINT
  friend constexpr bool operator==(const ConvPadding&, const ConvPadding&) = default;
};

template <int kDims>
struct ConvParams {
  Extent<kDims> stride = 1;
  ConvPadding<kDims> padding = 0;
  Extent<kDims> dilation = 1;
  std::int64_t groups = 1;
};
using Conv1dParams = ConvParams<1>;
using Conv2dParams = ConvParams<2>;
using Conv3dParams = ConvParams<3>;

/// Computes the cross-correlation of x and weight. Shapes: x is (N, C, H, W) or (C, H, W), weight is (K, C /
/// groups, R, S), bias is (K) or undefined. The result is (N, K, P, Q) or (K, P, Q) with P = (H + 2 padding -
/// dilation (R - 1) - 1) / stride + 1. Q is computed from W and S in the same way. If x or weight is
/// channels-last, so is the result. Throws ValueError if shapes, groups or window do not fit, if the window
/// has no elements, and if padding is "same" with another stride than 1.
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
              const Conv2dParams& params = {});
/// conv2d() with one spatial dimension: x is (N, C, L) or (C, L), and weight is (K, C / groups, S). The
/// kernels are those of conv2d, for images of one row.
Tensor conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
              const Conv1dParams& params = {});
/// conv2d() with three spatial dimensions: x is (N, C, D, H, W) or (C, D, H, W), and weight is (K, C /
/// groups, T, R, S). The tensors are row-major. A GPU has no kernel for it: the T slices of x that a window
/// touches become T times as many channels, and conv2d's kernel computes all planes at once. This takes
/// memory for T / stride copies of x, during the call only, and time to copy them. The same holds on a CPU
/// without oneDNN, and for dtypes other than f32. Windows of T x 1 x 1, 1 x 1 x S and 1 x 1 x 1 need no copy.
Tensor conv3d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
              const Conv3dParams& params = {});

template <int kDims>
struct ConvTransposeParams {
  Extent<kDims> stride = 1, padding = 0, output_padding = 0;
  std::int64_t groups = 1;
  Extent<kDims> dilation = 1;
};
using ConvTranspose1dParams = ConvTransposeParams<1>;
using ConvTranspose2dParams = ConvTransposeParams<2>;
using ConvTranspose3dParams = ConvTransposeParams<3>;

/// Computes the transpose of conv2d as a linear map of its input (Zeiler et al., "Deconvolutional networks",
/// 2010): the gradient that conv2d with this weight, stride, padding and dilation gives its input, if x is
/// the gradient of its output. Shapes: x is (N, C, H, W) or (C, H, W), weight is (C, K / groups, R, S), bias
/// is (K) or undefined. The result is (N, K, P, Q) or (K, P, Q) with P = (H - 1) stride - 2 padding +
/// dilation (R - 1) + output_padding + 1. Several sizes of conv2d's input give the same size of its output;
/// output_padding, which is less than stride or dilation, selects one. If x or weight is channels-last, so is
/// the result. Throws ValueError if shapes, groups or sizes do not fit.
Tensor conv_transpose2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                        const ConvTranspose2dParams& params = {});
/// conv_transpose2d() with one spatial dimension: x is (N, C, L) or (C, L).
Tensor conv_transpose1d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                        const ConvTranspose1dParams& params = {});
/// conv_transpose2d() with three spatial dimensions: x is (N, C, D, H, W) or (C, D, H, W). It is computed as
/// the gradient of conv3d.
Tensor conv_transpose3d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                        const ConvTranspose3dParams& params = {});

}  // namespace tapestry
