#include <cmath>
#include <numbers>

#include "tapestry/data/internal/pixels.h"

namespace tapestry::data {
namespace {

/// One rotation: the point (x, y) of the output shows the point (x * c - y * s, x * s + y * c) of the input.
/// Both are relative to the middle of the image; `shift` moves the center to another point.
struct Rotation {
  float c, s, shift_x, shift_y;
};

Rotation rotation_of(double degrees, const RotationOptions& o, std::int64_t h, std::int64_t w) {
  const double angle = degrees * std::numbers::pi / 180, c = std::cos(angle), s = std::sin(angle);
  double x = 0, y = 0;
  if (o.center) {
    x = o.center->first - 0.5 * static_cast<double>(w);
    y = o.center->second - 0.5 * static_cast<double>(h);
  }
  return {static_cast<float>(c), static_cast<float>(s), static_cast<float>(x - c * x + s * y),
          static_cast<float>(y - s * x - c * y)};
}

template <class T>
void rotate_image(const T* in, T* out, std::int64_t channels, std::int64_t h, std::int64_t w,
                  const Rotation& r, const RotationOptions& o) {
  const float half_w = static_cast<float>(w - 1) / 2, half_h = static_cast<float>(h - 1) / 2;
  const auto at = [&](const T* plane, std::int64_t y, std::int64_t x) {
    return static_cast<float>(plane[y * w + x]);
  };
  for (std::int64_t y = 0; y < h; ++y) {
    for (std::int64_t x = 0; x < w; ++x) {
      const float dx = static_cast<float>(x) - half_w, dy = static_cast<float>(y) - half_h;
      const float from_x = dx * r.c - dy * r.s + r.shift_x + half_w;
      const float from_y = dx * r.s + dy * r.c + r.shift_y + half_h;
      if (o.interpolation == Interpolation::nearest) {
        const float nx = std::nearbyint(from_x), ny = std::nearbyint(from_y);
        const bool inside = nx >= 0 && ny >= 0 && nx < static_cast<float>(w) && ny < static_cast<float>(h);
        for (std::int64_t c = 0; c < channels; ++c)
          out[(c * h + y) * w + x] =
              inside ? in[(c * h + static_cast<std::int64_t>(ny)) * w + static_cast<std::int64_t>(nx)]
                     : to_pixel<T>(o.fill);
        continue;
      }
      const float left = std::floor(from_x), top = std::floor(from_y);
      if (!(left >= -1 && top >= -1 && left < static_cast<float>(w) && top < static_cast<float>(h))) {
        for (std::int64_t c = 0; c < channels; ++c) out[(c * h + y) * w + x] = to_pixel<T>(o.fill);
        continue;
      }
      const float right_part = from_x - left, bottom_part = from_y - top;
      const std::int64_t x0 = static_cast<std::int64_t>(left), y0 = static_cast<std::int64_t>(top);
      for (std::int64_t c = 0; c < channels; ++c) {
        const T* plane = in + c * h * w;
        float sum = 0, covered = 0;  // what lies outside of the image counts as `fill`
        for (std::int64_t j = 0; j < 2; ++j) {
          for (std::int64_t i = 0; i < 2; ++i) {
            if (x0 + i < 0 || x0 + i >= w || y0 + j < 0 || y0 + j >= h) continue;
            const float part = (i ? right_part : 1 - right_part) * (j ? bottom_part : 1 - bottom_part);
            sum += part * at(plane, y0 + j, x0 + i);
            covered += part;
          }
        }
        out[(c * h + y) * w + x] = to_pixel<T>(sum + (1 - covered) * o.fill);
      }
    }
  }
}

/// Rotates image i by the i-th angle that `draw` returns.
template <class F>
Tensor rotated(const char* op, const Tensor& in, std::span<Rng> random, const RotationOptions& o,
               const F& draw) {
  const std::int64_t channels = in.size(1), h = in.size(2), w = in.size(3);
  Tensor out = empty(in.sizes(), {in.dtype(), kCPU});
  with_pixel(op, in.dtype(), [&](auto pixel) {
    using Pixel = decltype(pixel);
    const Pixel* from = in.data<Pixel>();
    Pixel* to = out.data<Pixel>();
    for (Rng& rng : random) {
      rotate_image(from, to, channels, h, w, rotation_of(draw(rng), o, h, w), o);
      from += channels * h * w;
      to += channels * h * w;
    }
  });
  return out;
}

void check_angles(const char* op, double low, double high, const RotationOptions& o) {
  check(std::isfinite(low) && std::isfinite(high) && low <= high, "[", op, "] the angles are from ", low,
        " to ", high, "; give finite numbers in ascending order");
  check(o.interpolation != Interpolation::bicubic, "[", op,
        "] bicubic interpolation is not supported; nearest and bilinear are");
}

}  // namespace

ImageTransform rotate(double degrees, RotationOptions o) {
  check_angles("rotate", degrees, degrees, o);
  return {"rotate", false, [=](const Tensor& in, std::span<Rng> random) {
            return rotated("rotate", in, random, o, [&](Rng&) { return degrees; });
          }};
}

ImageTransform random_rotation(double low, double high, RotationOptions o) {
  check_angles("random_rotation", low, high, o);
  return {"random_rotation", true, [=](const Tensor& in, std::span<Rng> random) {
            return rotated("random_rotation", in, random, o,
                           [&](Rng& rng) { return uniform(rng, low, high); });
          }};
}
ImageTransform random_rotation(double degrees, RotationOptions o) {
  check(degrees >= 0, "[random_rotation] degrees is ", degrees,
        "; give a number of at least 0, or two angles");
  return random_rotation(-degrees, degrees, o);
}

}  // namespace tapestry::data
