#include "tapestry/core/error.h"
#include "tapestry/data/formats/image.h"
#include "tapestry/data/formats/internal/codec.h"

#ifdef TAPESTRY_HAS_JPEG
#include <jerror.h>
#include <jpeglib.h>
#include <cstdio>  // jpeglib.h uses FILE without including it

#include <csetjmp>
#include <cstdlib>
#include <memory>

namespace tapestry::data {
namespace {

/// The state of reading or writing one file. Only plain data, because longjmp() runs no destructors.
struct Errors {
  jpeg_error_mgr manager;  // the first member: libjpeg passes a pointer to it
  std::jmp_buf jump;
  char text[JMSG_LENGTH_MAX] = "";
};
Errors& errors_of(j_common_ptr info) { return *reinterpret_cast<Errors*>(info->err); }

[[noreturn]] void on_error(j_common_ptr info) {
  Errors& errors = errors_of(info);
  errors.manager.format_message(info, errors.text);
  std::longjmp(errors.jump, 1);
}
/// libjpeg warns of corrupt data and fills in gray. That would silently change an image, so it is an error
/// here, except for oddities that lose no pixels.
void on_message(j_common_ptr info, int level) {
  if (level >= 0) return;
  switch (info->err->msg_code) {
    case JWRN_ADOBE_XFORM:
    case JWRN_BOGUS_PROGRESSION:
    case JWRN_EXTRANEOUS_DATA:
    case JWRN_TOO_MUCH_DATA:
      return;
  }
  on_error(info);
}
void ignore_message(j_common_ptr) {}

/// A progressive file of a few KiB can have thousands of scans of a whole image each, which would take hours.
void limit_scans(j_common_ptr info) {
  constexpr int kMostScans = 500;
  if (info->is_decompressor && reinterpret_cast<j_decompress_ptr>(info)->input_scan_number > kMostScans) {
    Errors& errors = errors_of(info);
    std::snprintf(errors.text, sizeof errors.text, "it has more than %d scans", kMostScans);
    std::longjmp(errors.jump, 1);
  }
}

void start(Errors& errors, jpeg_error_mgr*& manager) {
  manager = jpeg_std_error(&errors.manager);
  errors.manager.error_exit = on_error;
  errors.manager.emit_message = on_message;
  errors.manager.output_message = ignore_message;
}

struct Decoder {
  jpeg_decompress_struct info{};
  jpeg_progress_mgr progress{};
  Errors errors{};
  ~Decoder() { jpeg_destroy_decompress(&info); }
};

bool read_header(Decoder& job, const unsigned char* file, unsigned long bytes, bool gray) {
  start(job.errors, job.info.err);
  if (setjmp(job.errors.jump)) return false;
  jpeg_create_decompress(&job.info);
  job.progress.progress_monitor = limit_scans;
  job.info.progress = &job.progress;
  jpeg_mem_src(&job.info, file, bytes);
  jpeg_read_header(&job.info, TRUE);
  if (job.info.num_components == 4) job.info.out_color_space = JCS_CMYK;
  else if (gray || job.info.num_components == 1) job.info.out_color_space = JCS_GRAYSCALE;
  else job.info.out_color_space = JCS_RGB;
  jpeg_calc_output_dimensions(&job.info);
  return true;
}

bool read_pixels(Decoder& job, std::uint8_t* out) {
  if (setjmp(job.errors.jump)) return false;
  jpeg_start_decompress(&job.info);
  const std::size_t row =
      std::size_t{job.info.output_width} * static_cast<unsigned>(job.info.output_components);
  while (job.info.output_scanline < job.info.output_height) {
    JSAMPROW line = out + job.info.output_scanline * row;
    jpeg_read_scanlines(&job.info, &line, 1);
  }
  jpeg_finish_decompress(&job.info);
  return true;
}

struct Encoder {
  jpeg_compress_struct info{};
  Errors errors{};
  unsigned char* file = nullptr;
  unsigned long bytes = 0;
  ~Encoder() {
    jpeg_destroy_compress(&info);
    std::free(file);
  }
};

bool write_all(Encoder& job, const RawImage& image, int quality) {
  start(job.errors, job.info.err);
  if (setjmp(job.errors.jump)) return false;
  jpeg_create_compress(&job.info);
  jpeg_mem_dest(&job.info, &job.file, &job.bytes);
  job.info.image_width = static_cast<JDIMENSION>(image.width);
  job.info.image_height = static_cast<JDIMENSION>(image.height);
  job.info.input_components = image.channels;
  job.info.in_color_space = image.channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
  jpeg_set_defaults(&job.info);
  jpeg_set_quality(&job.info, quality, TRUE);
  jpeg_start_compress(&job.info, TRUE);
  while (job.info.next_scanline < job.info.image_height) {
    JSAMPROW line = const_cast<JSAMPROW>(image.bytes.data()) +
                    job.info.next_scanline * static_cast<std::size_t>(image.width * image.channels);
    jpeg_write_scanlines(&job.info, &line, 1);
  }
  jpeg_finish_compress(&job.info);
  return true;
}

/// Converts CMYK to RGB in place. Files with Adobe's marker store the inverse of each ink.
void cmyk_to_rgb(RawImage& image, bool inverted) {
  const std::size_t pixels = static_cast<std::size_t>(image.width * image.height);
  for (std::size_t i = 0; i < pixels; ++i) {
    const std::uint8_t* ink = image.bytes.data() + 4 * i;
    const int black = inverted ? ink[3] : 255 - ink[3];
    std::uint8_t rgb[3];
    for (int c = 0; c < 3; ++c)
      rgb[c] = static_cast<std::uint8_t>(((inverted ? ink[c] : 255 - ink[c]) * black + 127) / 255);
    for (std::size_t c = 0; c < 3; ++c) image.bytes[3 * i + c] = rgb[c];
  }
  image.channels = 3;
  image.bytes.resize(3 * pixels);
}

}  // namespace

bool supports_jpeg() { return true; }

RawImage decode_jpeg(const std::string& where, std::span<const std::uint8_t> file, std::int64_t max_pixels,
                     bool gray) {
  const auto job = std::make_unique<Decoder>();
  if (!read_header(*job, file.data(), static_cast<unsigned long>(file.size()), gray))
    fail<IoError>(where, "the JPEG image cannot be decoded: ", job->errors.text);
  check_image_size(where, job->info.output_width, job->info.output_height, max_pixels);
  RawImage image{job->info.output_height, job->info.output_width, job->info.output_components, {}};
  image.bytes.resize(static_cast<std::size_t>(image.height * image.width * image.channels));
  if (!read_pixels(*job, image.bytes.data()))
    fail<IoError>(where, "the JPEG image cannot be decoded: ", job->errors.text);
  if (image.channels == 4) cmyk_to_rgb(image, job->info.saw_Adobe_marker);
  return image;
}

std::vector<std::uint8_t> encode_jpeg(const RawImage& image, int quality) {
  Encoder job;
  if (!write_all(job, image, quality))
    fail<Error>("[encode_jpeg] the image cannot be encoded: ", job.errors.text);
  return {job.file, job.file + job.bytes};
}

}  // namespace tapestry::data

#else

namespace tapestry::data {

bool supports_jpeg() { return false; }
RawImage decode_jpeg(const std::string& where, std::span<const std::uint8_t>, std::int64_t, bool) {
  fail<Error>(where, "this library was built without JPEG; install libjpeg-dev and build again");
}
std::vector<std::uint8_t> encode_jpeg(const RawImage&, int) {
  fail<Error>("[encode_jpeg] this library was built without JPEG; install libjpeg-dev and build again");
}

}  // namespace tapestry::data

#endif
