#pragma once
// Contracts of the pools.
#include "tapestry/kernels/slot.h"
#include "tapestry/kernels/view.h"

namespace tapestry::kernels {

/// x (N, C, H, W) and y (N, C, P, Q) are dense, both row-major or both channels-last. Averages are computed
/// in f32, or in f64 for f64, and rounded once.
struct Pool2dShape {
  std::int64_t n = 0, c = 0, h = 0, w = 0, p = 0, q = 0;
  std::int64_t kernel_h = 1, kernel_w = 1, stride_h = 1, stride_w = 1, padding_h = 0, padding_w = 0;
  std::int64_t dilation_h = 1, dilation_w = 1;
  bool count_include_pad = true;
  bool channels_last = false;
};

/// The place of an element in its window is r * kernel_w + s. Places are u8 for windows of at most
/// kSmallWindow elements and i32 for larger ones. The largest value of the type marks a window without
/// elements, whose maximum is -inf.
inline constexpr std::int64_t kSmallWindow = 255;

/// y = the maximum of each window, `places` = the place of the first maximum, laid out like y. NaN wins.
/// `places` may be null.
struct MaxPool2dArgs {
  Pool2dShape shape;
  ConstArray x;
  MutableArray y, places;
};
inline constinit Slot<MaxPool2dArgs> max_pool2d{"max_pool2d"};
/// dx from dy and the places.
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
/// count_include_pad counts the padded elements of a window in its divisor, but no elements beyond the
/// padding.
inline constinit Slot<AvgPool2dArgs> avg_pool2d{"avg_pool2d"};
inline constinit Slot<AvgPool2dBackwardArgs> avg_pool2d_backward{"avg_pool2d_backward"};
/// Averages of the windows [floor(i H / P), ceil((i + 1) H / P)). Only the sizes and the layout are used.
inline constinit Slot<AvgPool2dArgs> adaptive_avg_pool2d{"adaptive_avg_pool2d"};
inline constinit Slot<AvgPool2dBackwardArgs> adaptive_avg_pool2d_backward{"adaptive_avg_pool2d_backward"};

}  // namespace tapestry::kernels
