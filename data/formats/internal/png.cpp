#include "tapestry/core/error.h"
#include "tapestry/data/formats/image.h"
#include "tapestry/data/formats/internal/codec.h"

#ifdef TAPESTRY_HAS_PNG
#include <png.h>

#include <csetjmp>
#include <cstring>

namespace tapestry::data {
namespace {

/// The state of reading or writing one file. Only plain data, because longjmp() runs no destructors.
struct Job {
  png_structp png = nullptr;
  png_infop info = nullptr;
  const unsigned char* from = nullptr;  // what is left of the file to read
  std::size_t left = 0;
  std::vector<std::uint8_t>* to = nullptr;  // the file to write
  png_uint_32 width = 0, height = 0;
  std::size_t stored_row = 0, row = 0;  // bytes of a row in the file and in memory
  int channels = 0, passes = 0;
  char error[160] = "";
};

[[noreturn]] void on_error(png_structp png, png_const_charp text) {
  Job& job = *static_cast<Job*>(png_get_error_ptr(png));
  std::strncpy(job.error, text, sizeof job.error - 1);
  png_longjmp(png, 1);
}
void on_warning(png_structp, png_const_charp) {}

void read_bytes(png_structp png, png_bytep out, png_size_t bytes) {
  Job& job = *static_cast<Job*>(png_get_io_ptr(png));
  if (bytes > job.left) png_error(png, "the file is cut off");
  std::memcpy(out, job.from, bytes);
  job.from += bytes;
  job.left -= bytes;
}
void write_bytes(png_structp png, png_bytep from, png_size_t bytes) {
  std::vector<std::uint8_t>& to = *static_cast<Job*>(png_get_io_ptr(png))->to;
  bool stored = true;
  try {
    to.insert(to.end(), from, from + bytes);
  } catch (...) {
    stored = false;
  }
  if (!stored) png_error(png, "there is not enough memory");
}
void flush(png_structp) {}

/// Reads up to the first pixels, and asks for 8 bits per channel.
bool read_header(Job& job) {
  if (setjmp(png_jmpbuf(job.png))) return false;
  png_set_read_fn(job.png, &job, read_bytes);
  png_set_user_limits(job.png, 0x7fffffff, 0x7fffffff);
  png_set_chunk_malloc_max(job.png, 8 << 20);  // bounds what a compressed comment or profile may expand to
  png_set_chunk_cache_max(job.png, 100);
  png_read_info(job.png, job.info);
  job.width = png_get_image_width(job.png, job.info);
  job.height = png_get_image_height(job.png, job.info);
  job.stored_row = png_get_rowbytes(job.png, job.info);
  const int color = png_get_color_type(job.png, job.info);
  if (color == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(job.png);
  if (color == PNG_COLOR_TYPE_GRAY && png_get_bit_depth(job.png, job.info) < 8)
    png_set_expand_gray_1_2_4_to_8(job.png);
  if (png_get_valid(job.png, job.info, PNG_INFO_tRNS)) png_set_tRNS_to_alpha(job.png);
  if (png_get_bit_depth(job.png, job.info) == 16) png_set_scale_16(job.png);
  job.passes = png_set_interlace_handling(job.png);
  png_read_update_info(job.png, job.info);
  job.channels = png_get_channels(job.png, job.info);
  job.row = png_get_rowbytes(job.png, job.info);
  return true;
}

bool read_pixels(Job& job, std::uint8_t* out) {
  if (setjmp(png_jmpbuf(job.png))) return false;
  for (int pass = 0; pass < job.passes; ++pass)
    for (png_uint_32 y = 0; y < job.height; ++y) png_read_row(job.png, out + y * job.row, nullptr);
  png_read_end(job.png, nullptr);
  return true;
}

bool write_all(Job& job, const std::uint8_t* pixels, int color, int compression) {
  if (setjmp(png_jmpbuf(job.png))) return false;
  png_set_write_fn(job.png, &job, write_bytes, flush);
  png_set_compression_level(job.png, compression);
  png_set_IHDR(job.png, job.info, job.width, job.height, 8, color, PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  png_write_info(job.png, job.info);
  for (png_uint_32 y = 0; y < job.height; ++y) png_write_row(job.png, pixels + y * job.row);
  png_write_end(job.png, job.info);
  return true;
}

struct Reader : Job {
  Reader() {
    png = png_create_read_struct(PNG_LIBPNG_VER_STRING, static_cast<Job*>(this), on_error, on_warning);
    info = png ? png_create_info_struct(png) : nullptr;
    check<Error>(info != nullptr, "[decode_image] libpng could not be started: ", error);
  }
  ~Reader() { png_destroy_read_struct(&png, &info, nullptr); }
};
struct Writer : Job {
  Writer() {
    png = png_create_write_struct(PNG_LIBPNG_VER_STRING, static_cast<Job*>(this), on_error, on_warning);
    info = png ? png_create_info_struct(png) : nullptr;
    check<Error>(info != nullptr, "[encode_png] libpng could not be started: ", error);
  }
  ~Writer() { png_destroy_write_struct(&png, &info); }
};

}  // namespace

bool supports_png() { return true; }

RawImage decode_png(const std::string& where, std::span<const std::uint8_t> file, std::int64_t max_pixels) {
  Reader job;
  job.from = file.data();
  job.left = file.size();
  if (!read_header(job)) fail<IoError>(where, "the PNG image cannot be decoded: ", job.error);
  check_image_size(where, job.width, job.height, max_pixels);
  constexpr std::uint64_t kDeflateBest = 1032;
  check<IoError>(job.stored_row <= file.size() * kDeflateBest / job.height, where, "its header claims ",
                 job.width, " x ", job.height, " pixels, but a PNG file of ", file.size(),
                 " bytes cannot hold them; it is cut off or its header is wrong");
  check<IoError>(job.row == std::size_t{job.width} * static_cast<std::size_t>(job.channels), where,
                 "the PNG image does not have 8 bits per channel after conversion");
  RawImage image{job.height, job.width, job.channels, {}};
  image.bytes.resize(job.height * job.row);
  if (!read_pixels(job, image.bytes.data()))
    fail<IoError>(where, "the PNG image cannot be decoded: ", job.error);
  return image;
}

std::vector<std::uint8_t> encode_png(const RawImage& image, int compression) {
  constexpr int kColors[] = {PNG_COLOR_TYPE_GRAY, PNG_COLOR_TYPE_GRAY_ALPHA, PNG_COLOR_TYPE_RGB,
                             PNG_COLOR_TYPE_RGB_ALPHA};
  std::vector<std::uint8_t> file;
  Writer job;
  job.to = &file;
  job.width = static_cast<png_uint_32>(image.width);
  job.height = static_cast<png_uint_32>(image.height);
  job.row = static_cast<std::size_t>(image.width * image.channels);
  if (!write_all(job, image.bytes.data(), kColors[image.channels - 1], compression))
    fail<Error>("[encode_png] the image cannot be encoded: ", job.error);
  return file;
}

}  // namespace tapestry::data

#else

namespace tapestry::data {

bool supports_png() { return false; }
RawImage decode_png(const std::string& where, std::span<const std::uint8_t>, std::int64_t) {
  fail<Error>(where, "this library was built without PNG; install libpng-dev and build again");
}
std::vector<std::uint8_t> encode_png(const RawImage&, int) {
  fail<Error>("[encode_png] this library was built without PNG; install libpng-dev and build again");
}

}  // namespace tapestry::data

#endif
