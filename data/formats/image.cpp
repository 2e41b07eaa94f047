#include "tapestry/data/formats/image.h"

#include <cstring>
#include <string_view>

#include "tapestry/core/atomic_file.h"
#include "tapestry/data/collate.h"
#include "tapestry/data/formats/internal/codec.h"
#include "tapestry/data/formats/internal/input_file.h"

namespace tapestry::data {
namespace {

constexpr std::int64_t kMostFileBytes = std::int64_t{1} << 31;

bool is_png(std::string_view bytes) { return bytes.starts_with("\x89PNG\r\n\x1a\n"); }
bool is_jpeg(std::string_view bytes) { return bytes.starts_with("\xff\xd8\xff"); }

const char* name_of_format(std::string_view bytes) {
  if (bytes.empty()) return "is empty";
  if (bytes.starts_with("GIF8")) return "is a GIF file";
  if (bytes.starts_with("BM")) return "is a BMP file";
  if (bytes.starts_with("RIFF") && bytes.substr(0, 12).ends_with("WEBP")) return "is a WebP file";
  if (bytes.starts_with(std::string_view("II*\0", 4)) || bytes.starts_with(std::string_view("MM\0*", 4)))
    return "is a TIFF file";
  if (bytes.substr(0, 12).ends_with("ftypavif")) return "is an AVIF file";
  return "does not begin like a PNG or JPEG file";
}

/// PIL's and libjpeg's weights of red, green and blue, in units of 2^-16 (ITU-R BT.601).
std::uint8_t luma(const std::uint8_t* rgb) {
  return static_cast<std::uint8_t>((19595u * rgb[0] + 38470u * rgb[1] + 7471u * rgb[2] + 0x8000u) >> 16);
}

int channels_of(ImageMode mode, int stored) {
  switch (mode) {
    case ImageMode::unchanged:
      return stored;
    case ImageMode::gray:
      return 1;
    case ImageMode::gray_alpha:
      return 2;
    case ImageMode::rgb:
      return 3;
    case ImageMode::rgb_alpha:
      return 4;
  }
  return stored;
}

/// Converts interleaved channels to planes with the channels that `mode` asks for.
Tensor planes(const RawImage& image, ImageMode mode) {
  const int from_channels = image.channels, to_channels = channels_of(mode, from_channels);
  Tensor out = empty({to_channels, image.height, image.width}, {DType::u8, kCPU});
  const std::int64_t plane = image.height * image.width;
  const bool from_color = from_channels >= 3, to_color = to_channels >= 3;
  const bool from_alpha = from_channels % 2 == 0, to_alpha = to_channels % 2 == 0;
  for (int c = 0; c < to_channels; ++c) {
    const std::uint8_t* from = image.bytes.data();
    std::uint8_t* const to = out.data<std::uint8_t>() + c * plane;
    if (to_alpha && c == to_channels - 1) {
      if (!from_alpha) std::memset(to, 255, static_cast<std::size_t>(plane));
      for (std::int64_t i = 0; from_alpha && i < plane; ++i)
        to[i] = from[i * from_channels + from_channels - 1];
    } else if (from_color && !to_color) {
      for (std::int64_t i = 0; i < plane; ++i) to[i] = luma(from + i * from_channels);
    } else {
      from += from_color ? c : 0;
      for (std::int64_t i = 0; i < plane; ++i) to[i] = from[i * from_channels];
    }
  }
  return out;
}

Tensor decode(const std::string& where, std::span<const std::uint8_t> bytes, const ImageOptions& options) {
  check(options.max_pixels >= 1, where, "max_pixels is ", options.max_pixels, "; it must be at least 1");
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (is_png(text)) return planes(decode_png(where, bytes, options.max_pixels), options.mode);
  if (is_jpeg(text)) {
    const bool gray = options.mode == ImageMode::gray || options.mode == ImageMode::gray_alpha;
    return planes(decode_jpeg(where, bytes, options.max_pixels, gray), options.mode);
  }
  fail<IoError>(where, name_of_format(text), "; PNG and JPEG images are supported");
}

RawImage interleaved(const char* op, const Tensor& image, bool alpha) {
  check_cpu(op, image, "image");
  check<TypeError>(image.dtype() == DType::u8, "[", op, "] the image is ", image.dtype(),
                   "; bytes (uint8) are written: multiply fractions by 255, round, and call byte()");
  constexpr std::int64_t kLongestSide = 65500;
  const bool three = image.dim() == 3;
  const std::int64_t c = three ? image.size(0) : 0;
  check(three && (c == 1 || c == 3 || (alpha && (c == 2 || c == 4))), "[", op,
        "] expected an image [C, H, W] with ", alpha ? "1 to 4" : "1 or 3", " channels, got ", image.sizes());
  check(image.size(1) >= 1 && image.size(2) >= 1 && image.size(1) <= kLongestSide &&
            image.size(2) <= kLongestSide,
        "[", op, "] the image is ", image.sizes(), "; sides from 1 to ", kLongestSide, " are supported");
  RawImage out{image.size(1), image.size(2), static_cast<int>(c), {}};
  out.bytes.resize(static_cast<std::size_t>(image.numel()));
  const Tensor dense_image = dense(image);
  const std::int64_t plane = out.height * out.width;
  for (std::int64_t k = 0; k < c; ++k) {
    const std::uint8_t* from = dense_image.data<std::uint8_t>() + k * plane;
    for (std::int64_t i = 0; i < plane; ++i) out.bytes[static_cast<std::size_t>(i * c + k)] = from[i];
  }
  return out;
}

void write(const std::string& path, const std::vector<std::uint8_t>& bytes) {
  write_file_atomically(path, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

}  // namespace

void check_image_size(const std::string& where, std::uint64_t width, std::uint64_t height,
                      std::int64_t max_pixels) {
  check<IoError>(width >= 1 && height >= 1 && height <= static_cast<std::uint64_t>(max_pixels) / width, where,
                 "the image has ", width, " x ", height, " pixels, and ", max_pixels,
                 " are allowed; if you trust the file, raise ImageOptions::max_pixels");
}

Tensor decode_image(std::span<const std::uint8_t> bytes, const ImageOptions& options) {
  return decode("[decode_image] ", bytes, options);
}

Tensor read_image(const std::string& path, const ImageOptions& options) {
  InputFile file("read_image", path);
  if (file.compressed()) file.broken("is a gzip file; PNG and JPEG images are supported");
  if (file.remaining() > static_cast<std::uint64_t>(kMostFileBytes))
    file.broken(concat({"has ", file.remaining(), " bytes; images of up to ", kMostFileBytes, " are read"}));
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(file.remaining()));
  file.read(bytes.data(), bytes.size(), "image");
  return decode(concat({"[read_image] ", path, ": "}), bytes, options);
}

std::vector<std::uint8_t> encode_png(const Tensor& image, int compression) {
  check(compression >= 0 && compression <= 9, "[encode_png] compression is ", compression,
        "; it must be from 0 to 9");
  return encode_png(interleaved("encode_png", image, true), compression);
}
std::vector<std::uint8_t> encode_jpeg(const Tensor& image, int quality) {
  check(quality >= 1 && quality <= 100, "[encode_jpeg] quality is ", quality, "; it must be from 1 to 100");
  return encode_jpeg(interleaved("encode_jpeg", image, false), quality);
}
void write_png(const std::string& path, const Tensor& image, int compression) {
  write(path, encode_png(image, compression));
}
void write_jpeg(const std::string& path, const Tensor& image, int quality) {
  write(path, encode_jpeg(image, quality));
}

}  // namespace tapestry::data
