#include <algorithm>
#include <cmath>

#include "tapestry/data/internal/pixels.h"

namespace tapestry::data {
namespace {

/// One axis of a separable resampling: output i is the sum of weights[i * most + k] * in[first[i] + k], for k
/// below count[i].
struct Taps {
  std::vector<std::int64_t> first, count;
  std::vector<float> weights;
  std::int64_t most = 0;
};

double triangle(double x) { return std::max(0.0, 1 - std::abs(x)); }
/// Keys, "Cubic convolution interpolation for digital image processing", 1981. PyTorch uses a = -0.5 with
/// antialias, as PIL does, and -0.75 without.
double cubic(double x, double a) {
  x = std::abs(x);
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return (((x - 5) * x + 8) * x - 4) * a;
  return 0;
}

/// The pixel centers are at i + 0.5 (align_corners = false). With antialias, a filter of the width of an
/// output pixel takes the place of the interpolation when the image shrinks.
Taps make_taps(std::int64_t in, std::int64_t out, Interpolation interpolation, bool antialias) {
  Taps taps;
  const double scale = static_cast<double>(in) / static_cast<double>(out);
  const bool bicubic = interpolation == Interpolation::bicubic;
  const double stretch = antialias ? std::max(scale, 1.0) : 1.0, support = (bicubic ? 2 : 1) * stretch;
  taps.most =
      interpolation == Interpolation::nearest ? 1 : static_cast<std::int64_t>(std::ceil(support)) * 2 + 1;
  taps.first.resize(static_cast<std::size_t>(out));
  taps.count.resize(static_cast<std::size_t>(out));
  taps.weights.resize(static_cast<std::size_t>(out * taps.most));
  std::vector<double> w(static_cast<std::size_t>(taps.most));
  for (std::int64_t i = 0; i < out; ++i) {
    std::int64_t& first = taps.first[static_cast<std::size_t>(i)];
    std::int64_t& count = taps.count[static_cast<std::size_t>(i)];
    std::fill(w.begin(), w.end(), 0.0);
    const double center = scale * (static_cast<double>(i) + 0.5);
    if (interpolation == Interpolation::nearest) {
      const float step = static_cast<float>(in) / static_cast<float>(out);  // PyTorch's precision
      first = std::min(static_cast<std::int64_t>(static_cast<float>(i) * step), in - 1);
      count = 1;
      w[0] = 1;
    } else if (bicubic && !antialias) {
      // Pixels outside of the image are those of the border, so several taps can fall on one pixel.
      const std::int64_t base = static_cast<std::int64_t>(std::floor(center - 0.5)) - 1;
      first = std::clamp<std::int64_t>(base, 0, in - 1);
      count = std::clamp<std::int64_t>(base + 3, 0, in - 1) - first + 1;
      for (std::int64_t k = base; k < base + 4; ++k)
        w[static_cast<std::size_t>(std::clamp<std::int64_t>(k, 0, in - 1) - first)] +=
            cubic(center - 0.5 - static_cast<double>(k), -0.75);
    } else {
      first = std::max<std::int64_t>(static_cast<std::int64_t>(center - support + 0.5), 0);
      count = std::min(static_cast<std::int64_t>(center + support + 0.5), in) - first;
      double sum = 0;
      for (std::int64_t k = 0; k < count; ++k) {
        const double x = (static_cast<double>(first + k) - center + 0.5) / stretch;
        sum += w[static_cast<std::size_t>(k)] = bicubic ? cubic(x, -0.5) : triangle(x);
      }
      for (double& weight : w) weight /= sum;
    }
    for (std::size_t k = 0; k < w.size(); ++k)
      taps.weights[static_cast<std::size_t>(i * taps.most) + k] = static_cast<float>(w[k]);
  }
  return taps;
}

/// Scales one plane. `lines` holds in_height rows of the output's width.
template <class T>
void resample(const T* in, std::int64_t in_row, std::int64_t in_height, const Taps& columns, const Taps& rows,
              std::vector<float>& lines, T* out) {
  const std::int64_t width = static_cast<std::int64_t>(columns.first.size());
  for (std::int64_t y = 0; y < in_height; ++y) {
    float* line = lines.data() + y * width;
    for (std::int64_t x = 0; x < width; ++x) {
      const T* from = in + y * in_row + columns.first[static_cast<std::size_t>(x)];
      const float* weight = columns.weights.data() + x * columns.most;
      float sum = 0;
      for (std::int64_t k = 0; k < columns.count[static_cast<std::size_t>(x)]; ++k)
        sum += weight[k] * static_cast<float>(from[k]);
      line[x] = sum;
    }
  }
  std::vector<float> sum(static_cast<std::size_t>(width));
  for (std::size_t y = 0; y < rows.first.size(); ++y, out += width) {
    std::fill(sum.begin(), sum.end(), 0.0f);
    for (std::int64_t k = 0; k < rows.count[y]; ++k) {
      const float weight =
          rows.weights[y * static_cast<std::size_t>(rows.most) + static_cast<std::size_t>(k)];
      const float* line = lines.data() + (rows.first[y] + k) * width;
      for (std::int64_t x = 0; x < width; ++x) sum[static_cast<std::size_t>(x)] += weight * line[x];
    }
    for (std::int64_t x = 0; x < width; ++x) out[x] = to_pixel<T>(sum[static_cast<std::size_t>(x)]);
  }
}

/// Calls fn(columns, rows, from, to) for the planes of each image.
template <class Item, class F>
void for_planes(const Tensor& images, const std::vector<Window>& windows, Interpolation interpolation,
                bool antialias, const Tensor& out, const F& fn) {
  const std::int64_t channels = images.size(1), h = images.size(2), w = images.size(3);
  const std::int64_t plane = out.size(2) * out.size(3);
  const Item* from = static_cast<const Item*>(images.raw_data());
  Item* to = static_cast<Item*>(out.raw_data());
  Taps columns, rows;
  for (std::size_t i = 0; i < windows.size(); ++i) {
    const Window& window = windows[i];
    if (i == 0 || window.width != windows[i - 1].width)
      columns = make_taps(window.width, out.size(3), interpolation, antialias);
    if (i == 0 || window.height != windows[i - 1].height)
      rows = make_taps(window.height, out.size(2), interpolation, antialias);
    for (std::int64_t c = 0; c < channels; ++c, from += h * w, to += plane)
      fn(columns, rows, from + window.top * w + window.left, window.height, to);
  }
}

/// PyTorch's and torchvision's size for a given shorter side.
std::pair<std::int64_t, std::int64_t> with_shorter_side(std::int64_t h, std::int64_t w,
                                                        std::int64_t shorter) {
  const double ratio = static_cast<double>(std::max(h, w)) / static_cast<double>(std::min(h, w));
  check(static_cast<double>(shorter) * ratio <= 1 << 24, "[resize] images of ", h, " x ", w,
        " with a shorter side of ", shorter, " are beyond any memory; give height and width");
  const std::int64_t longer = shorter * std::max(h, w) / std::min(h, w);
  return h <= w ? std::pair(shorter, longer) : std::pair(longer, shorter);
}

/// torchvision's RandomResizedCrop.get_params.
Window draw_window(const RandomResizedCropOptions& o, std::int64_t h, std::int64_t w, Rng& rng) {
  const double area = static_cast<double>(h * w);
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double part = area * uniform(rng, o.scale.first, o.scale.second);
    const double ratio = std::exp(uniform(rng, std::log(o.ratio.first), std::log(o.ratio.second)));
    const std::int64_t width = std::llrint(std::sqrt(part * ratio)),
                       height = std::llrint(std::sqrt(part / ratio));
    if (width < 1 || width > w || height < 1 || height > h) continue;
    const std::int64_t top = rng.below(h - height + 1);
    return {top, rng.below(w - width + 1), height, width};
  }
  const double ratio = static_cast<double>(w) / static_cast<double>(h);
  std::int64_t width = w, height = h;
  if (ratio < o.ratio.first)
    height = std::clamp<std::int64_t>(std::llrint(static_cast<double>(w) / o.ratio.first), 1, h);
  else if (ratio > o.ratio.second)
    width = std::clamp<std::int64_t>(std::llrint(static_cast<double>(h) * o.ratio.second), 1, w);
  return {(h - height) / 2, (w - width) / 2, height, width};
}

void check_not_empty(const char* op, const Tensor& images) {
  check(images.size(2) >= 1 && images.size(3) >= 1, "[", op, "] images of ", images.size(2), " x ",
        images.size(3), " have no pixels");
}

}  // namespace

Tensor resize_windows(const char* op, const Tensor& images, const std::vector<Window>& windows,
                      std::int64_t height, std::int64_t width, Interpolation interpolation, bool antialias) {
  Tensor out = empty({images.size(0), images.size(1), height, width}, {images.dtype(), kCPU});
  const std::int64_t in_row = images.size(3);
  if (interpolation == Interpolation::nearest) {
    with_item(images.dtype(), [&](auto item) {
      using Item = decltype(item);
      const auto pick = [&](const Taps& columns, const Taps& rows, const Item* from, std::int64_t, Item* to) {
        for (const std::int64_t y : rows.first)
          for (const std::int64_t x : columns.first) *to++ = from[y * in_row + x];
      };
      for_planes<Item>(images, windows, interpolation, antialias, out, pick);
    });
    return out;
  }
  with_pixel(op, images.dtype(), [&](auto pixel) {
    using Pixel = decltype(pixel);
    std::vector<float> lines;
    for_planes<Pixel>(
        images, windows, interpolation, antialias, out,
        [&](const Taps& columns, const Taps& rows, const Pixel* from, std::int64_t in_height, Pixel* to) {
          lines.resize(static_cast<std::size_t>(in_height * width));
          resample(from, in_row, in_height, columns, rows, lines, to);
        });
  });
  return out;
}

ImageTransform resize(std::int64_t height, std::int64_t width, ResizeOptions o) {
  check_size("resize", height, width);
  return {"resize", false, [=](const Tensor& in, std::span<Rng> random) {
            check_not_empty("resize", in);
            const Window all{0, 0, in.size(2), in.size(3)};
            return resize_windows("resize", in, std::vector<Window>(random.size(), all), height, width,
                                  o.interpolation, o.antialias);
          }};
}

ImageTransform resize(std::int64_t shorter, ResizeOptions o) {
  check_size("resize", shorter, shorter);
  return {"resize", false, [=](const Tensor& in, std::span<Rng> random) {
            check_not_empty("resize", in);
            const Window all{0, 0, in.size(2), in.size(3)};
            const auto [height, width] = with_shorter_side(in.size(2), in.size(3), shorter);
            return resize_windows("resize", in, std::vector<Window>(random.size(), all), height, width,
                                  o.interpolation, o.antialias);
          }};
}

ImageTransform random_resized_crop(std::int64_t height, std::int64_t width, RandomResizedCropOptions o) {
  check_size("random_resized_crop", height, width);
  check_range("random_resized_crop", "scale", o.scale);
  check_range("random_resized_crop", "ratio", o.ratio);
  return {"random_resized_crop", true, [=](const Tensor& in, std::span<Rng> random) {
            check_not_empty("random_resized_crop", in);
            std::vector<Window> windows;
            for (Rng& rng : random) windows.push_back(draw_window(o, in.size(2), in.size(3), rng));
            return resize_windows("random_resized_crop", in, windows, height, width, o.interpolation,
                                  o.antialias);
          }};
}
ImageTransform random_resized_crop(std::int64_t size, RandomResizedCropOptions options) {
  return random_resized_crop(size, size, options);
}

}  // namespace tapestry::data
