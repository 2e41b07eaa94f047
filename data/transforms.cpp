#include "tapestry/data/transforms.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#include "tapestry/data/internal/pixels.h"

namespace tapestry::data {
namespace {

float channel(const std::vector<float>& values, std::int64_t c) {
  return values[values.size() == 1 ? 0 : static_cast<std::size_t>(c)];
}

Tensor normalized(const char* op, const Tensor& in, const std::vector<float>& mean,
                  const std::vector<float>& std) {
  check<TypeError>(in.dtype() == DType::u8 || in.dtype() == DType::f32, "[", op, "] images are ", in.dtype(),
                   "; uint8 and float32 are supported");
  const std::int64_t n = in.size(0), channels = in.size(1), plane = in.size(2) * in.size(3);
  for (const auto* values : {&mean, &std})
    check(values->size() == 1 || static_cast<std::int64_t>(values->size()) == channels, "[", op, "] ",
          values->size(), " values for ", channels, " channels; give one, or one each");
  Tensor out = empty(in.sizes(), {DType::f32, kCPU});
  for (std::int64_t c = 0; c < channels; ++c) {
    const float m = channel(mean, c), s = channel(std, c);
    float table[256];  // the result for every byte value
    for (int v = 0; v < 256; ++v) table[v] = (static_cast<float>(v) / 255.0f - m) / s;
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t at = (i * channels + c) * plane;
      float* to = out.data<float>() + at;
      if (in.dtype() == DType::u8) {
        const std::uint8_t* from = in.data<std::uint8_t>() + at;
        for (std::int64_t j = 0; j < plane; ++j) to[j] = table[from[j]];
      } else {
        const float* from = in.data<float>() + at;
        for (std::int64_t j = 0; j < plane; ++j) to[j] = (from[j] - m) / s;
      }
    }
  }
  return out;
}

/// Copies window i of image i. What lies outside of the image is zero.
Tensor cropped(const Tensor& in, const std::vector<Window>& windows, std::int64_t height,
               std::int64_t width) {
  const std::int64_t channels = in.size(1), h = in.size(2), w = in.size(3);
  Tensor out = empty({in.size(0), channels, height, width}, {in.dtype(), kCPU});
  const std::int64_t item = static_cast<std::int64_t>(dtype_size(in.dtype()));
  const char* from = static_cast<const char*>(in.raw_data());
  char* to = static_cast<char*>(out.raw_data());
  for (const Window& window : windows) {
    // Columns [begin, end) of the window lie inside the image.
    const std::int64_t begin = std::clamp<std::int64_t>(-window.left, 0, width),
                       end = std::clamp<std::int64_t>(w - window.left, begin, width);
    for (std::int64_t c = 0; c < channels; ++c, from += h * w * item) {
      for (std::int64_t y = 0; y < height; ++y, to += width * item) {
        const std::int64_t line = window.top + y;
        if (line < 0 || line >= h) {
          std::memset(to, 0, static_cast<std::size_t>(width * item));
          continue;
        }
        std::memset(to, 0, static_cast<std::size_t>(begin * item));
        if (end > begin)
          std::memcpy(to + begin * item, from + (line * w + window.left + begin) * item,
                      static_cast<std::size_t>((end - begin) * item));
        std::memset(to + end * item, 0, static_cast<std::size_t>((width - end) * item));
      }
    }
  }
  return out;
}

/// A normal number, by the Box-Muller transform (1958).
float normal(Rng& rng) {
  const double radius = std::sqrt(-2 * std::log1p(-rng.uniform()));
  return static_cast<float>(radius * std::cos(2 * std::numbers::pi * rng.uniform()));
}

/// Draws rectangles until one is smaller than the image, at most ten. Returns an empty one if none is.
Window draw_hole(const RandomErasingOptions& o, std::int64_t h, std::int64_t w, Rng& rng) {
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double area = static_cast<double>(h * w) * uniform(rng, o.scale.first, o.scale.second);
    const double ratio = std::exp(uniform(rng, std::log(o.ratio.first), std::log(o.ratio.second)));
    const std::int64_t height = std::llrint(std::sqrt(area * ratio)),
                       width = std::llrint(std::sqrt(area / ratio));
    if (height >= h || width >= w) continue;
    const std::int64_t top = rng.below(h - height + 1);
    return Window{top, rng.below(w - width + 1), height, width};
  }
  return {0, 0, 0, 0};
}

}  // namespace

void check_size(const char* op, std::int64_t height, std::int64_t width) {
  constexpr std::int64_t kMost = std::int64_t{1} << 24;
  check(height >= 1 && height <= kMost && width >= 1 && width <= kMost, "[", op, "] a size of ", height,
        " x ", width, " is impossible; sides are from 1 to ", kMost);
}

void check_probability(const char* op, double p) {
  check(p >= 0 && p <= 1, "[", op, "] p is ", p, "; it must be in [0, 1]");
}

void check_range(const char* op, const char* what, const std::pair<double, double>& range) {
  check(range.first > 0 && range.first <= range.second && range.second <= 1e9, "[", op, "] ", what,
        " is from ", range.first, " to ", range.second, "; give two positive numbers in ascending order");
}

ImageTransform normalize(std::vector<float> mean, std::vector<float> std) {
  check(!mean.empty() && !std.empty(), "[normalize] mean or std is empty; give one value, or one a channel");
  for (float s : std) check(s != 0, "[normalize] a std of 0 divides by zero");
  return {"normalize", false,
          [mean = std::move(mean), std = std::move(std)](const Tensor& images, std::span<Rng>) {
            return normalized("normalize", images, mean, std);
          }};
}

ImageTransform to_float() {
  return {"to_float", false, [](const Tensor& images, std::span<Rng>) {
            return normalized("to_float", images, {0.0f}, {1.0f});
          }};
}

ImageTransform random_crop(std::int64_t height, std::int64_t width, std::int64_t padding) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  check(height >= 1 && height <= kMost && width >= 1 && width <= kMost && padding >= 0 && padding <= kMost,
        "[random_crop] a window of ", height, "x", width, " with padding ", padding, " is impossible");
  return {"random_crop", true, [=](const Tensor& in, std::span<Rng> random) {
            const std::int64_t h = in.size(2), w = in.size(3);
            check(height <= h + 2 * padding && width <= w + 2 * padding, "[random_crop] a window of ", height,
                  "x", width, " does not fit in images of ", h, "x", w, " with padding ", padding);
            std::vector<Window> windows;
            for (Rng& rng : random) {
              const std::int64_t top = rng.below(h + 2 * padding - height + 1) - padding;
              const std::int64_t left = rng.below(w + 2 * padding - width + 1) - padding;
              windows.push_back({top, left, height, width});
            }
            return cropped(in, windows, height, width);
          }};
}

ImageTransform crop(std::int64_t top, std::int64_t left, std::int64_t height, std::int64_t width) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  check_size("crop", height, width);
  check(std::abs(top) <= kMost && std::abs(left) <= kMost, "[crop] the place ", top, ", ", left,
        " is impossible");
  return {"crop", false, [=](const Tensor& in, std::span<Rng> random) {
            const Window window{top, left, height, width};
            return cropped(in, std::vector<Window>(random.size(), window), height, width);
          }};
}

ImageTransform center_crop(std::int64_t height, std::int64_t width) {
  check_size("center_crop", height, width);
  return {"center_crop", false, [=](const Tensor& in, std::span<Rng> random) {
            // torchvision pads a small image first, with the smaller half of the zeros in front, and rounds
            // the place of a window in a larger image half to even.
            const auto start = [](std::int64_t side, std::int64_t wanted) {
              return side < wanted
                         ? -((wanted - side) / 2)
                         : static_cast<std::int64_t>(std::nearbyint(static_cast<double>(side - wanted) / 2));
            };
            const Window window{start(in.size(2), height), start(in.size(3), width), height, width};
            return cropped(in, std::vector<Window>(random.size(), window), height, width);
          }};
}
ImageTransform center_crop(std::int64_t size) { return center_crop(size, size); }

ImageTransform random_horizontal_flip(double p) {
  check_probability("random_horizontal_flip", p);
  return {"random_horizontal_flip", true, [=](const Tensor& in, std::span<Rng> random) {
            Tensor out = empty(in.sizes(), {in.dtype(), kCPU});
            const std::int64_t rows = in.size(1) * in.size(2), w = in.size(3);
            with_item(in.dtype(), [&](auto item) {
              using Item = decltype(item);
              const Item* from = static_cast<const Item*>(in.raw_data());
              Item* to = static_cast<Item*>(out.raw_data());
              for (Rng& rng : random) {
                if (rng.uniform() >= p) {
                  std::copy_n(from, rows * w, to);
                } else {
                  for (std::int64_t r = 0; r < rows; ++r)
                    std::reverse_copy(from + r * w, from + (r + 1) * w, to + r * w);
                }
                from += rows * w;
                to += rows * w;
              }
            });
            return out;
          }};
}

ImageTransform random_vertical_flip(double p) {
  check_probability("random_vertical_flip", p);
  return {"random_vertical_flip", true, [=](const Tensor& in, std::span<Rng> random) {
            Tensor out = empty(in.sizes(), {in.dtype(), kCPU});
            const std::int64_t channels = in.size(1), h = in.size(2);
            const std::size_t line = static_cast<std::size_t>(in.size(3)) * dtype_size(in.dtype());
            if (in.numel() == 0) return out;
            const char* from = static_cast<const char*>(in.raw_data());
            char* to = static_cast<char*>(out.raw_data());
            for (Rng& rng : random) {
              const bool flip = rng.uniform() < p;
              for (std::int64_t c = 0; c < channels; ++c) {
                for (std::int64_t y = 0; y < h; ++y, to += line)
                  std::memcpy(to, from + static_cast<std::size_t>(flip ? h - 1 - y : y) * line, line);
                from += static_cast<std::size_t>(h) * line;
              }
            }
            return out;
          }};
}

ImageTransform random_erasing(RandomErasingOptions o) {
  check_probability("random_erasing", o.p);
  check_range("random_erasing", "scale", o.scale);
  check_range("random_erasing", "ratio", o.ratio);
  return {"random_erasing", true, [o](const Tensor& in, std::span<Rng> random) {
            Tensor out = empty(in.sizes(), {in.dtype(), kCPU});
            const std::int64_t channels = in.size(1), h = in.size(2), w = in.size(3);
            check<TypeError>(!o.random_values || in.dtype() == DType::f32,
                             "[random_erasing] random values need float32 images, got ", in.dtype(),
                             "; put normalize() or to_float() before it");
            if (in.numel() > 0) std::memcpy(out.raw_data(), in.raw_data(), in.nbytes());
            with_pixel("random_erasing", in.dtype(), [&](auto pixel) {
              using Pixel = decltype(pixel);
              Pixel* image = out.data<Pixel>();
              for (Rng& rng : random) {
                const Window hole = rng.uniform() < o.p ? draw_hole(o, h, w, rng) : Window{0, 0, 0, 0};
                for (std::int64_t c = 0; c < channels; ++c, image += h * w) {
                  for (std::int64_t y = hole.top; y < hole.top + hole.height; ++y)
                    for (std::int64_t x = hole.left; x < hole.left + hole.width; ++x)
                      image[y * w + x] = to_pixel<Pixel>(o.random_values ? normal(rng) : o.value);
                }
              }
            });
            return out;
          }};
}

}  // namespace tapestry::data
