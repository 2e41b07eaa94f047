#pragma once
// The pixels and weights that a coordinate of grid_sample selects along one axis, for host and device code.
// The formulas are those of Jaderberg et al. 2015, with PyTorch's conventions for padding.
#include <cmath>
#include <cstdint>
#include <limits>

#include "tapestry/core/philox.h"  // TAPESTRY_HOST_DEVICE

namespace tapestry::kernels {

enum class GridMode : std::uint8_t { bilinear, nearest, bicubic };
enum class GridPadding : std::uint8_t { zeros, border, reflection };

/// The pixels per axis that a point of the grid reads.
TAPESTRY_HOST_DEVICE constexpr int grid_taps(GridMode mode) {
  return mode == GridMode::nearest ? 1 : mode == GridMode::bilinear ? 2 : 4;
}

/// The coordinates of a point that are not finite, one bit per axis. Bilinear and bicubic samples of images
/// with zeros as padding are NaN at such a point, although no pixel is there, as in PyTorch on CPUs.
struct GridHoles {
  unsigned axes = 0;
  bool bicubic = false;

  TAPESTRY_HOST_DEVICE explicit operator bool() const { return axes != 0; }
  /// Whether the derivative with respect to the coordinate of this axis is NaN. A bilinear sample's
  /// derivative has the weights of the other axis alone.
  TAPESTRY_HOST_DEVICE bool in_slope(int axis) const {
    return bicubic ? axes != 0 : (axes & ~(1u << axis)) != 0;
  }
};

/// One axis of the image.
struct GridAxis {
  std::int64_t size = 1;
  std::int64_t stride = 0;  ///< of the image, in elements
};

/// A pixel that a point reads along one axis. The value along the axis is the sum of weight * pixel, and its
/// derivative with respect to the grid's coordinate is the sum of slope * pixel. An index of -1 is a pixel
/// outside, which is 0.
template <class C>
struct GridTap {
  std::int64_t index;
  C weight, slope;
};

namespace detail {

/// A coordinate in pixels, and its derivative with respect to the grid's coordinate.
template <class C>
struct GridPoint {
  C at, slope;
};

/// Limits the coordinate to [0, size - 1]. NaN becomes 0, as PyTorch's documentation says.
template <class C>
TAPESTRY_HOST_DEVICE inline GridPoint<C> clipped(GridPoint<C> p, C size) {
  if (!(p.at > 0)) return {0, 0};
  if (p.at >= size - 1) return {size - 1, 0};
  return p;
}
/// Reflects the coordinate at the borders low / 2 and high / 2 until it lies between them.
template <class C>
TAPESTRY_HOST_DEVICE inline GridPoint<C> reflected(GridPoint<C> p, C low, C high) {
  if (low == high) return {0, 0};
  const C from = low / 2, span = (high - low) / 2;
  C at = p.at - from, slope = p.slope;
  if (at < 0) at = -at, slope = -slope;
  const C flips = std::floor(at / span), extra = at - flips * span;
  if (flips == 2 * std::floor(flips / 2)) return {extra + from, slope};
  return {span - extra + from, -slope};
}
template <class C>
TAPESTRY_HOST_DEVICE inline GridPoint<C> padded(GridPoint<C> p, C size, GridPadding padding,
                                                bool align_corners) {
  if (padding == GridPadding::reflection)
    p = align_corners ? reflected(p, C(0), 2 * (size - 1)) : reflected(p, C(-1), 2 * size - 1);
  return padding == GridPadding::zeros ? p : clipped(p, size);
}

/// The cubic convolution kernel with a = -0.75 at distance x, where inner: x < 1 and otherwise 1 <= x < 2.
template <class C>
TAPESTRY_HOST_DEVICE inline C grid_cubic(C x, bool inner) {
  constexpr C a = C(-0.75);
  return inner ? ((a + 2) * x - (a + 3)) * x * x + 1 : ((a * x - 5 * a) * x + 8 * a) * x - 4 * a;
}
template <class C>
TAPESTRY_HOST_DEVICE inline C grid_cubic_slope(C x, bool inner) {
  constexpr C a = C(-0.75);
  return inner ? (3 * (a + 2) * x - 2 * (a + 3)) * x : (3 * a * x - 10 * a) * x + 8 * a;
}

}  // namespace detail

/// The place of a point along one axis. tap(i) gives its pixels, for i below grid_taps(mode). They are not
/// stored in an array, because a GPU would keep an array in memory.
template <class C>
class GridPlace {
 public:
  /// The grid's coordinate `g` is -1 at the first and 1 at the last pixel: at their centres with
  /// align_corners, and otherwise at their outer edges.
  TAPESTRY_HOST_DEVICE GridPlace(C g, std::int64_t pixels, GridMode mode, GridPadding padding,
                                 bool align_corners)
      : pixels_(pixels), mode_(mode), padding_(padding), align_corners_(align_corners) {
    const C size = static_cast<C>(pixels);
    detail::GridPoint<C> p = align_corners ? detail::GridPoint<C>{(g + 1) / 2 * (size - 1), (size - 1) / 2}
                                           : detail::GridPoint<C>{((g + 1) * size - 1) / 2, size / 2};
    if (mode != GridMode::bicubic) p = detail::padded(p, size, padding, align_corners);
    // Beyond this limit the conversion to integers would overflow. No pixel is there, unless the pixels of a
    // cubic kernel are moved into the image.
    outside_ = padding == GridPadding::zeros && !(std::abs(p.at) < C(0x1p30));
    finite_ = std::abs(p.at) <= std::numeric_limits<C>::max();
    first_ = mode == GridMode::nearest ? std::rint(p.at) : std::floor(p.at);
    part_ = p.at - first_;
    slope_ = p.slope;
  }
  /// True if zeros are the padding, and the coordinate is NaN or infinite.
  TAPESTRY_HOST_DEVICE bool is_hole() const { return outside_ && !finite_; }
  TAPESTRY_HOST_DEVICE GridTap<C> tap(int i) const {
    if (outside_) return {-1, 0, 0};
    if (mode_ == GridMode::nearest) return {inside(first_), 1, 0};
    if (mode_ == GridMode::bilinear)
      return i == 0 ? GridTap<C>{inside(first_), 1 - part_, -slope_}
                    : GridTap<C>{inside(first_ + 1), part_, slope_};
    const C distance = i < 2 ? part_ + C(1 - i) : C(i - 1) - part_;
    const bool inner = i == 1 || i == 2;
    const C at =
        detail::padded({first_ + C(i - 1), C(0)}, static_cast<C>(pixels_), padding_, align_corners_).at;
    return {inside(at), detail::grid_cubic(distance, inner),
            (i < 2 ? slope_ : -slope_) * detail::grid_cubic_slope(distance, inner)};
  }

 private:
  TAPESTRY_HOST_DEVICE std::int64_t inside(C at) const {
    const auto i = static_cast<std::int64_t>(at);
    return i >= 0 && i < pixels_ ? i : std::int64_t{-1};
  }

  std::int64_t pixels_;
  GridMode mode_;
  GridPadding padding_;
  bool align_corners_, outside_, finite_;
  C first_, part_, slope_;
};

template <class C>
TAPESTRY_HOST_DEVICE inline GridHoles holes_of(int dims, GridMode mode, const GridPlace<C>& rows,
                                               const GridPlace<C>& columns) {
  if (dims != 2 || mode == GridMode::nearest) return {};
  return {(rows.is_hole() ? 2u : 0u) | (columns.is_hole() ? 4u : 0u), mode == GridMode::bicubic};
}

}  // namespace tapestry::kernels
