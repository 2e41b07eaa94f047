#pragma once
// Contracts of the pools. For all slots in this file:
//   Shapes: x is (N, C, H, W), y is (N, C, P, Q).
//   Layout: all arrays are dense, and all row-major or all channels-last.
//   Dtypes: all arrays except `places` have the slot's dtype, which is floating.
//   Accumulation: f32, or f64 for f64. Averages are rounded once.
#include "tapestry/kernels/slot.h"
#include "tapestry/kernels/view.h"

namespace tapestry::kernels {

/// The shapes and options of a pool.
struct Pool2dShape {
  std::int64_t n = 0, c = 0, h = 0, w = 0, p = 0, q = 0;
  std::int64_t kernel_h = 1, kernel_w = 1, stride_h = 1, stride_w = 1, padding_h = 0, padding_w = 0;
  std::int64_t dilation_h = 1, dilation_w = 1;
  bool count_include_pad = true;
  bool channels_last = false;
};

/// The place of an element is its index in its window, r * kernel_w + s. Places are u8 for windows of at most
/// kSmallWindow elements, and i32 for larger windows. A window that lies wholly in the padding has maximum
/// -inf, and its place is -1, which is 255 in u8.
inline constexpr std::int64_t kSmallWindow = 255;

/// Computes the maximum y of each window, and in `places` the place of the first maximum. `places` has the
/// shape and layout of y, or is null. If a window has a NaN, y is NaN.
struct MaxPool2dArgs {
  Pool2dShape shape;
  ConstArray x;
  MutableArray y, places;
};
inline constinit Slot<MaxPool2dArgs> max_pool2d{"max_pool2d"};
/// Computes dx from dy and the places.
struct MaxPool2dBackwardArgs {
  Pool2dShape shape;
  ConstArray dy, places;
  MutableArray dx;
};
inline constinit Slot<MaxPool2dBackwardArgs> max_pool2d_backward{"max_pool2d_backward"};

struct AvgPool2dArgs {
  Pool2dShape shape;
  ConstArray x;
  MutableArray y;
};
struct AvgPool2dBackwardArgs {
  Pool2dShape shape;
  ConstArray dy;
  MutableArray dx;
};
/// Computes the average of each window. With count_include_pad the divisor includes elements in the padding.
/// It never includes elements beyond the padding.
inline constinit Slot<AvgPool2dArgs> avg_pool2d{"avg_pool2d"};
inline constinit Slot<AvgPool2dBackwardArgs> avg_pool2d_backward{"avg_pool2d_backward"};
/// Computes the averages of the windows [floor(i H / P), ceil((i + 1) H / P)), and the same for columns. The
/// kernels use only the sizes and the layout in Pool2dShape.
inline constinit Slot<AvgPool2dArgs> adaptive_avg_pool2d{"adaptive_avg_pool2d"};
inline constinit Slot<AvgPool2dBackwardArgs> adaptive_avg_pool2d_backward{"adaptive_avg_pool2d_backward"};

}  // namespace tapestry::kernels
