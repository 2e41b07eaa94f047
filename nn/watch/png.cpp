// A PNG writer (ISO/IEC 15948): one image of 8 bits per channel, without filters and interlacing.
#include "tapestry/nn/watch/png.h"

#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/core/context.h"
#include "tapestry/core/error.h"

namespace tapestry::watch {
namespace {

std::string big_endian(std::uint64_t value) {
  std::string out;
  for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(value >> shift & 0xff);
  return out;
}

std::string chunk(const std::string& type, const std::string& content) {
  const std::string body = type + content;
  const auto crc = crc32(0, reinterpret_cast<const Bytef*>(body.data()), static_cast<uInt>(body.size()));
  return big_endian(content.size()) + body + big_endian(crc);
}

// The image as dense u8 (C, H, W) on the CPU.
Tensor pixels_of(const Tensor& image) {
  const NoGradGuard no_grad;
  tapestry::detail::check_defined("encode_png", image);
  check(image.dim() == 2 || image.dim() == 3, "[encode_png] the image has shape ", image.sizes(),
        "; expected (H, W) or (C, H, W)");
  const Tensor x = image.dim() == 2 ? image.unsqueeze(0) : image;
  check(x.size(0) >= 1 && x.size(0) <= 4 && x.numel() > 0, "[encode_png] the image has shape ", image.sizes(),
        "; expected 1 to 4 channels and at least one pixel");
  if (x.dtype() == DType::u8) return x.cpu().contiguous();
  check<TypeError>(is_floating(x.dtype()), "[encode_png] the image is ", x.dtype(),
                   "; pass u8, or floating numbers from 0 to 1");
  const Tensor real = x.detach().to(kCPU, DType::f32).contiguous();
  const Tensor out = empty(x.sizes(), {DType::u8, kCPU});
  std::transform(
      real.data<float>(), real.data<float>() + real.numel(), out.data<std::uint8_t>(), [](float v) {
        return v > 0 ? static_cast<std::uint8_t>(std::lround(std::min(v, 1.0f) * 255)) : std::uint8_t(0);
      });
  return out;
}

}  // namespace

std::string encode_png(const Tensor& image) {
  const Tensor pixels = pixels_of(image);
  const std::int64_t channels = pixels.size(0), height = pixels.size(1), width = pixels.size(2);
  const std::int64_t plane = height * width;
  const auto* const p = pixels.data<std::uint8_t>();
  std::vector<Bytef> rows;  // each row begins with its filter, 0
  rows.reserve(static_cast<std::size_t>((width * channels + 1) * height));
  for (std::int64_t y = 0; y < height; ++y) {
    rows.push_back(0);
    for (std::int64_t x = 0; x < width; ++x)
      for (std::int64_t c = 0; c < channels; ++c) rows.push_back(p[c * plane + y * width + x]);
  }
  uLongf size = compressBound(static_cast<uLong>(rows.size()));
  std::string packed(size, '\0');
  const int status =
      compress(reinterpret_cast<Bytef*>(packed.data()), &size, rows.data(), static_cast<uLong>(rows.size()));
  check(status == Z_OK, "[encode_png] zlib failed with status ", status, "; pass a smaller image");
  packed.resize(size);

  constexpr const char kColourTypes[] = {0, 4, 2, 6};  // grey, grey and alpha, RGB, RGBA
  std::string header =
      big_endian(static_cast<std::uint64_t>(width)) + big_endian(static_cast<std::uint64_t>(height));
  header += {8, kColourTypes[channels - 1], 0, 0, 0};
  return "\x89PNG\r\n\x1a\n" + chunk("IHDR", header) + chunk("IDAT", packed) + chunk("IEND", "");
}

Tensor image_grid(const Tensor& images, std::int64_t columns, std::int64_t padding) {
  const NoGradGuard no_grad;
  tapestry::detail::check_defined("image_grid", images);
  check(images.dim() == 4 && images.numel() > 0, "[image_grid] the images have shape ", images.sizes(),
        "; expected (N, C, H, W) with elements");
  check(columns >= 0 && padding >= 0, "[image_grid] columns ", columns, " and padding ", padding,
        "; use 0 or more");
  const std::int64_t n = images.size(0), height = images.size(2), width = images.size(3);
  if (columns == 0) columns = static_cast<std::int64_t>(std::ceil(std::sqrt(static_cast<double>(n))));
  columns = std::min(columns, n);
  const std::int64_t rows = (n + columns - 1) / columns;
  const Tensor grid =
      zeros({images.size(1), rows * (height + padding) - padding, columns * (width + padding) - padding},
            {images.dtype(), images.device()});
  for (std::int64_t i = 0; i < n; ++i)
    grid.narrow(1, i / columns * (height + padding), height)
        .narrow(2, i % columns * (width + padding), width)
        .copy_(images.select(0, i));
  return grid;
}

}  // namespace tapestry::watch
