#pragma once
// Contracts of the pools.
#include "tapestry/kernels/slot.h"

namespace tapestry::kernels {

/// x (N, C, H, W), y (N, C, P, Q); both dense, both row-major or both channels-last. Averages are computed in
/// f32, for f64 in f64, and rounded once.
struct Pool2d {
  std::int64_t n = 0, c = 0, h = 0, w = 0, p = 0, q = 0;
  std::int64_t kernel_h = 1, kernel_w = 1, stride_h = 1, stride_w = 1, padding_h = 0, padding_w = 0;
  std::int64_t dilation_h = 1, dilation_w = 1;
  bool count_include_pad = true;
  bool channels_last = false;
  Device device;  ///< where a kernel takes its workspace
};

/// A place in a window is r * kernel_w + s. Windows of at most kSmallWindow elements store it in u8, others
/// in i32; the largest value of the type stands for a window without any element, whose maximum is -inf.
inline constexpr std::int64_t kSmallWindow = 255;

/// y and, unless null, the place of the first maximum in each window, laid out like y. NaN wins.
inline constinit Slot<void(const Pool2d&, const void* x, void* y, void* places)> max_pool2d{"max_pool2d"};
/// dx from dy and the places.
inline constinit Slot<void(const Pool2d&, const void* dy, const void* places, void* dx)> max_pool2d_backward{
    "max_pool2d_backward"};

/// Padding counts in the divisor with count_include_pad, as far as it lies within padding of the input.
inline constinit Slot<void(const Pool2d&, const void* x, void* y)> avg_pool2d{"avg_pool2d"};
inline constinit Slot<void(const Pool2d&, const void* dy, void* dx)> avg_pool2d_backward{
    "avg_pool2d_backward"};

/// Averages of the windows [floor(i H / P), ceil((i + 1) H / P)). Sizes and layout count only.
inline constinit Slot<void(const Pool2d&, const void* x, void* y)> adaptive_avg_pool2d{"adaptive_avg_pool2d"};
inline constinit Slot<void(const Pool2d&, const void* dy, void* dx)> adaptive_avg_pool2d_backward{
    "adaptive_avg_pool2d_backward"};

}  // namespace tapestry::kernels
