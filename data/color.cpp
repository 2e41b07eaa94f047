#include <algorithm>
#include <array>
#include <cmath>

#include "tapestry/data/internal/pixels.h"

namespace tapestry::data {
namespace {

/// The largest value of a channel.
template <class T>
inline constexpr float kTop = std::is_same_v<T, float> ? 1.0f : 255.0f;

/// Rounds down for bytes, as torchvision does when it converts a blend to uint8.
template <class T>
T blended(float value) {
  return static_cast<T>(std::clamp(value, 0.0f, kTop<T>));
}

/// One image: `channels` planes of `plane` pixels.
template <class T>
struct Planes {
  T* data;
  std::int64_t channels, plane;
  T* channel(std::int64_t c) const { return data + c * plane; }
  /// torchvision's weights of red, green and blue.
  float gray(std::int64_t i) const {
    if (channels == 1) return static_cast<float>(data[i]);
    const float sum = 0.2989f * static_cast<float>(channel(0)[i]) +
                      0.587f * static_cast<float>(channel(1)[i]) + 0.114f * static_cast<float>(channel(2)[i]);
    return std::is_same_v<T, float> ? sum : std::floor(sum);
  }
};

template <class T>
void adjust_brightness(const Planes<T>& image, double amount) {
  const float factor = static_cast<float>(amount);
  for (std::int64_t i = 0; i < image.channels * image.plane; ++i)
    image.data[i] = blended<T>(factor * static_cast<float>(image.data[i]));
}

template <class T>
void adjust_contrast(const Planes<T>& image, double amount) {
  const float factor = static_cast<float>(amount), rest = static_cast<float>(1 - amount);
  double sum = 0;
  for (std::int64_t i = 0; i < image.plane; ++i) sum += image.gray(i);
  const float mean = static_cast<float>(sum / static_cast<double>(image.plane));
  for (std::int64_t i = 0; i < image.channels * image.plane; ++i)
    image.data[i] = blended<T>(factor * static_cast<float>(image.data[i]) + rest * mean);
}

template <class T>
void adjust_saturation(const Planes<T>& image, double amount) {
  if (image.channels == 1) return;
  const float factor = static_cast<float>(amount), rest = static_cast<float>(1 - amount);
  for (std::int64_t i = 0; i < image.plane; ++i) {
    const float gray = image.gray(i);
    for (int c = 0; c < 3; ++c) {
      T& value = image.channel(c)[i];
      value = blended<T>(factor * static_cast<float>(value) + rest * gray);
    }
  }
}

/// Turns the hue of one pixel with channels in [0, 1] by `shift` circles (Smith, "Color Gamut Transform
/// Pairs", 1978).
std::array<float, 3> turn_hue(float r, float g, float b, float shift) {
  const float top = std::max({r, g, b}), low = std::min({r, g, b}), spread = top - low;
  const float saturation = spread == 0 ? 0 : spread / top;
  const float divisor = spread == 0 ? 1 : spread;
  const float rc = (top - r) / divisor, gc = (top - g) / divisor, bc = (top - b) / divisor;
  const float sixth = top == r ? bc - gc : top == g ? 2 + rc - bc : 4 + gc - rc;
  float hue = std::fmod(sixth / 6 + 1, 1.0f) + shift;
  hue -= std::floor(hue);
  const float sector = std::floor(hue * 6), f = hue * 6 - sector;
  const auto unit = [](float x) { return std::clamp(x, 0.0f, 1.0f); };
  const float p = unit(top * (1 - saturation)), q = unit(top * (1 - saturation * f)),
              t = unit(top * (1 - saturation * (1 - f)));
  switch (static_cast<int>(sector) % 6) {
    case 0:
      return {top, t, p};
    case 1:
      return {q, top, p};
    case 2:
      return {p, top, t};
    case 3:
      return {p, q, top};
    case 4:
      return {t, p, top};
    default:
      return {top, p, q};
  }
}

template <class T>
void adjust_hue(const Planes<T>& image, double amount) {
  if (image.channels == 1) return;
  const float shift = static_cast<float>(amount);
  for (std::int64_t i = 0; i < image.plane; ++i) {
    const auto turned = turn_hue(static_cast<float>(image.channel(0)[i]) / kTop<T>,
                                 static_cast<float>(image.channel(1)[i]) / kTop<T>,
                                 static_cast<float>(image.channel(2)[i]) / kTop<T>, shift);
    // torchvision converts to bytes with 256 - 1e-3 steps, so that each byte gets the same share of [0, 1].
    for (std::size_t c = 0; c < 3; ++c)
      image.channel(static_cast<std::int64_t>(c))[i] =
          std::is_same_v<T, float> ? static_cast<T>(turned[c]) : static_cast<T>(turned[c] * (256 - 1e-3f));
  }
}

/// Copies the images, and calls change(image, rng) for each.
template <class F>
Tensor changed(const char* op, const Tensor& in, std::span<Rng> random, const F& change) {
  const std::int64_t channels = in.size(1), plane = in.size(2) * in.size(3);
  check(channels == 1 || channels == 3, "[", op, "] expected images with 1 or 3 channels, got ", in.sizes());
  Tensor out = empty(in.sizes(), {in.dtype(), kCPU});
  with_pixel(op, in.dtype(), [&](auto pixel) {
    using Pixel = decltype(pixel);
    if (in.numel() == 0) return;
    std::copy_n(in.data<Pixel>(), in.numel(), out.data<Pixel>());
    Planes<Pixel> image{out.data<Pixel>(), channels, plane};
    for (Rng& rng : random) {
      change(image, rng);
      image.data += channels * plane;
    }
  });
  return out;
}

constexpr auto kBrightness = [](const auto& image, double factor) { adjust_brightness(image, factor); };
constexpr auto kContrast = [](const auto& image, double factor) { adjust_contrast(image, factor); };
constexpr auto kSaturation = [](const auto& image, double factor) { adjust_saturation(image, factor); };
constexpr auto kHue = [](const auto& image, double shift) { adjust_hue(image, shift); };

template <class F>
ImageTransform adjustment(const char* op, double amount, const F& adjust) {
  return {op, false, [=](const Tensor& in, std::span<Rng> random) {
            return changed(op, in, random, [&](const auto& image, Rng&) { adjust(image, amount); });
          }};
}
void check_factor(const char* op, double factor) {
  check(factor >= 0 && factor <= 1e6, "[", op, "] the factor is ", factor, "; it cannot be negative");
}
void check_hue(const char* op, double shift) {
  check(std::abs(shift) <= 0.5, "[", op, "] hue is ", shift,
        "; it is at most 0.5, which is half of the circle");
}

}  // namespace

ImageTransform adjust_brightness(double factor) {
  check_factor("adjust_brightness", factor);
  return adjustment("adjust_brightness", factor, kBrightness);
}
ImageTransform adjust_contrast(double factor) {
  check_factor("adjust_contrast", factor);
  return adjustment("adjust_contrast", factor, kContrast);
}
ImageTransform adjust_saturation(double factor) {
  check_factor("adjust_saturation", factor);
  return adjustment("adjust_saturation", factor, kSaturation);
}
ImageTransform adjust_hue(double shift) {
  check_hue("adjust_hue", shift);
  return adjustment("adjust_hue", shift, kHue);
}

ImageTransform color_jitter(ColorJitterOptions o) {
  for (const double x : {o.brightness, o.contrast, o.saturation}) check_factor("color_jitter", x);
  check_hue("color_jitter", o.hue);
  check(o.hue >= 0, "[color_jitter] hue is ", o.hue, "; it cannot be negative");
  return {"color_jitter", true, [o](const Tensor& in, std::span<Rng> random) {
            return changed("color_jitter", in, random, [&](const auto& image, Rng& rng) {
              std::array<int, 4> order = {0, 1, 2, 3};
              for (std::int64_t i = 0; i < 3; ++i)
                std::swap(order[static_cast<std::size_t>(i)],
                          order[static_cast<std::size_t>(i + rng.below(4 - i))]);
              const auto factor = [&](double x) { return uniform(rng, std::max(0.0, 1 - x), 1 + x); };
              const double brightness = factor(o.brightness), contrast = factor(o.contrast),
                           saturation = factor(o.saturation);
              const double shift = uniform(rng, -o.hue, o.hue);
              for (const int step : order) {
                if (step == 0 && o.brightness > 0) adjust_brightness(image, brightness);
                if (step == 1 && o.contrast > 0) adjust_contrast(image, contrast);
                if (step == 2 && o.saturation > 0) adjust_saturation(image, saturation);
                if (step == 3 && o.hue > 0) adjust_hue(image, shift);
              }
            });
          }};
}

}  // namespace tapestry::data
