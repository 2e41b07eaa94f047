#pragma once
// The parts of image.h that call libpng and libjpeg. Both libraries report errors by longjmp(). Each function
// that calls setjmp(), and all callbacks, therefore hold plain data only; C++ objects live in their callers.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tapestry::data {

/// An image with interleaved channels: gray; gray, alpha; RGB; or RGB, alpha.
struct RawImage {
  std::int64_t height = 0, width = 0;
  int channels = 0;
  std::vector<std::uint8_t> bytes;
};

/// Decode a whole file. Errors are IoErrors that begin with `where`. `gray` asks for one channel.
RawImage decode_png(const std::string& where, std::span<const std::uint8_t> file, std::int64_t max_pixels);
RawImage decode_jpeg(const std::string& where, std::span<const std::uint8_t> file, std::int64_t max_pixels,
                     bool gray);
/// Return the bytes of a file.
std::vector<std::uint8_t> encode_png(const RawImage& image, int compression);
std::vector<std::uint8_t> encode_jpeg(const RawImage& image, int quality);

/// Throws IoError unless the sides are at least 1 and the image has at most `max_pixels` pixels.
void check_image_size(const std::string& where, std::uint64_t width, std::uint64_t height,
                      std::int64_t max_pixels);

}  // namespace tapestry::data
