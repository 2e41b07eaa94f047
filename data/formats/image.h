#pragma once
// PNG and JPEG images. Tapestry needs libpng and libjpeg-turbo for them when it is built; otherwise these
// functions throw an error that names the missing package.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tapestry/core/tensor_fwd.h"

namespace tapestry::data {

/// The channels of a decoded image. `unchanged` keeps those of the file; a palette becomes RGB.
enum class ImageMode : std::uint8_t { unchanged, gray, gray_alpha, rgb, rgb_alpha };

struct ImageOptions {
  ImageMode mode = ImageMode::unchanged;
  /// Images with more pixels are refused before memory is allocated for them. A small file can claim to be a
  /// huge image.
  std::int64_t max_pixels = 100'000'000;
};

/// Decodes a PNG or JPEG file in memory to u8 [C, H, W] with C from 1 to 4, like torchvision's decode_image.
/// 16 bits per channel are reduced to 8. CMYK becomes RGB. Color profiles, gamma and the orientation in EXIF
/// data are ignored. Throws IoError if the bytes are cut off, corrupt, of another format, or claim more
/// pixels than allowed.
Tensor decode_image(std::span<const std::uint8_t> bytes, const ImageOptions& options = {});
/// Decodes a file. The errors name it.
Tensor read_image(const std::string& path, const ImageOptions& options = {});

/// Encodes an image u8 [C, H, W] with 1 (gray), 2 (gray, alpha), 3 (RGB) or 4 (RGB, alpha) channels.
/// `compression` is zlib's level, from 0 to 9. Throws ValueError for other images or levels.
std::vector<std::uint8_t> encode_png(const Tensor& image, int compression = 6);
/// Encodes an image u8 [C, H, W] with 1 or 3 channels. `quality` is from 1 to 100. 4:2:0 subsampling.
std::vector<std::uint8_t> encode_jpeg(const Tensor& image, int quality = 75);
/// Replace the file at `path` atomically.
void write_png(const std::string& path, const Tensor& image, int compression = 6);
void write_jpeg(const std::string& path, const Tensor& image, int quality = 75);

/// False if the library was built without libpng, or without libjpeg-turbo.
bool supports_png();
bool supports_jpeg();

}  // namespace tapestry::data
