#pragma once
// Contracts of the kernels that sample images at the points of a grid. For all slots in this file:
//   Shapes: x is (n, c, axes[0].size, axes[1].size, axes[2].size). An image has axes[0].size == 1. The grid
//     is (n, points, dims), where dims is 2 or 3; its first coordinate belongs to axes[2], the next one to
//     axes[1]. y is (n, c, points).
//   Layout: all arrays are dense. x and dx are row-major or channels-last, and so is y; the strides in
//     GridShape say which.
//   Dtypes: all arrays have the slot's dtype, which is floating.
//   Accumulation: f32, or f64 for f64.
// kernels/grid_sample.h has the formulas.
#include "tapestry/kernels/grid_sample.h"
#include "tapestry/kernels/slot.h"
#include "tapestry/kernels/view.h"

namespace tapestry::kernels {

struct GridShape {
  std::int64_t n = 0, c = 0, points = 0;
  int dims = 2;
  GridAxis axes[3];
  bool channels_last = false;
  GridMode mode = GridMode::bilinear;
  GridPadding padding = GridPadding::zeros;
  bool align_corners = false;

  /// The elements of an image of one channel.
  std::int64_t pixels() const { return axes[0].size * axes[1].size * axes[2].size; }
  /// The strides of channels and points of y, and of channels of x. Images follow each other.
  std::int64_t y_channel() const { return channels_last ? 1 : points; }
  std::int64_t y_point() const { return channels_last ? c : 1; }
  std::int64_t x_channel() const { return channels_last ? 1 : pixels(); }
  /// The most pixels that one point reads.
  int most_taps() const {
    const int each = grid_taps(mode);
    return dims == 2 ? each * each : each * each * each;
  }
};

struct GridSampleArgs {
  GridShape shape;
  ConstArray x, grid;
  MutableArray y;
};
inline constinit Slot<GridSampleArgs> grid_sample{"grid_sample"};

/// Computes dx. The terms of an element are added in order of their points, so the result is deterministic.
struct GridSampleBackwardInputArgs {
  GridShape shape;
  ConstArray grid, dy;
  MutableArray dx;
};
inline constinit Slot<GridSampleBackwardInputArgs> grid_sample_backward_input{"grid_sample_backward_input"};

/// Computes dgrid. Points where the derivative does not exist get that of one side, or 0 at a limit of
/// border padding.
struct GridSampleBackwardGridArgs {
  GridShape shape;
  ConstArray x, grid, dy;
  MutableArray dgrid;
};
inline constinit Slot<GridSampleBackwardGridArgs> grid_sample_backward_grid{"grid_sample_backward_grid"};

}  // namespace tapestry::kernels
