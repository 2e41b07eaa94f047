#pragma once
// Loops over pixels that several transforms share.
#include <cmath>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tapestry/core/error.h"
#include "tapestry/core/tensor.h"
#include "tapestry/data/rng.h"
#include "tapestry/data/transforms.h"

namespace tapestry::data {

/// Calls fn with an unsigned integer type of the element's size. Moving elements depends only on their size.
template <class F>
void with_item(DType dtype, F&& fn) {
  switch (dtype_size(dtype)) {
    case 1:
      return fn(std::uint8_t{});
    case 2:
      return fn(std::uint16_t{});
    case 4:
      return fn(std::uint32_t{});
    default:
      return fn(std::uint64_t{});
  }
}

/// Calls fn with a std::uint8_t or a float. Throws TypeError for other dtypes.
template <class F>
void with_pixel(std::string_view op, DType dtype, F&& fn) {
  check<TypeError>(dtype == DType::u8 || dtype == DType::f32, "[", op, "] images are ", dtype,
                   "; uint8 and float32 are supported");
  if (dtype == DType::u8) fn(std::uint8_t{});
  else fn(float{});
}

/// Converts a computed value to a pixel: bytes are rounded half to even and clamped.
template <class T>
T to_pixel(float value) {
  if constexpr (std::is_same_v<T, float>) return value;
  else return static_cast<T>(value <= 0 ? 0.0f : value >= 255 ? 255.0f : std::nearbyint(value));
}

inline double uniform(Rng& rng, double low, double high) { return low + (high - low) * rng.uniform(); }

/// Throws ValueError unless both sides are in [1, 2^24].
void check_size(const char* op, std::int64_t height, std::int64_t width);
/// Throws ValueError unless 0 <= p <= 1.
void check_probability(const char* op, double p);
/// Throws ValueError unless 0 < first <= second < infinity.
void check_range(const char* op, const char* what, const std::pair<double, double>& range);

/// A window of an image, in pixels.
struct Window {
  std::int64_t top, left, height, width;
};

/// Scales the window of each image in `images` [N, C, H, W]; windows[i] belongs to image i.
Tensor resize_windows(const char* op, const Tensor& images, const std::vector<Window>& windows,
                      std::int64_t height, std::int64_t width, Interpolation interpolation, bool antialias);

}  // namespace tapestry::data
